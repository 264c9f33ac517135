"""Laws of translating a request to a protocol that lacks some of its parameters."""

import orjson
import pytest

from router.canonical.text import TextRequest
from router.errors import WorkerRejected, WorkerUnable
from router.requests import Kind
from router.translate.request import MappedRequest, RequestMapping, unheard
from router.workers import Worker
from tests.router.world import chat, own

WORKER = own("http://127.0.0.1:1").worker
LOOK = {"type": "function", "function": {"name": "look"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def mapped(request: TextRequest, worker: Worker) -> MappedRequest:
    return MappedRequest(
        "p", ({"model": worker.own_model},), unheard(request, "max_tokens", "temperature")
    )


def said(mapping: RequestMapping, kind: Kind = Kind.CHAT, **fields: object) -> MappedRequest:
    assert WORKER
    defaults = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    request = chat(kind=kind, body=orjson.dumps({**defaults, **fields}))
    return mapping.read(request, WORKER)[1]


POOR = RequestMapping(name="Poor", kinds=frozenset({Kind.CHAT}), mapped=mapped)
RICH = RequestMapping(
    name="Rich", kinds=frozenset({Kind.CHAT, Kind.COMPLETION}), mapped=mapped, tools=True, schemas=True,
    shaping=frozenset({"grammar"}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [LOOK]}, "tools"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"grammar": "x"}, "grammar"),
        ({"kind": Kind.COMPLETION}, "model"),
    ],
    ids=str,
)
def test_a_field_that_would_change_the_kind_of_answer_is_refused_unless_it_is_supported(
    fields: dict[str, object], param: str
) -> None:
    with pytest.raises(WorkerUnable) as refused:
        said(POOR, **fields)  # type: ignore[arg-type]
    assert (refused.value.param, "Poor" in str(refused.value)) == (param, True)
    assert said(RICH, **fields).path == "p"  # type: ignore[arg-type]


def test_tools_that_may_not_be_called_need_no_support() -> None:
    assert said(POOR, tools=[LOOK], tool_choice="none").dropped == ()


def test_a_wrong_value_is_refused_by_its_name() -> None:
    with pytest.raises(WorkerRejected) as refused:
        said(RICH, temperature=9)
    assert orjson.loads(refused.value.body)["error"]["param"] == "temperature"


def test_unsupported_parameters_are_named() -> None:
    drawn = {"temperature": 0.5, "top_p": 0.5, "seed": 0, "min_p": 0, "x_own": 1}
    assert said(POOR, **drawn).dropped == ("seed", "top_p", "x_own")
