"""Any request is mapped to a message that can be sent, or refused."""

import contextlib

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.dialects.localai_grpc import request_mapping
from router.dialects.localai_grpc.texts import MAPPING
from router.errors import WorkerError
from router.requests import Kind
from router.rpc.messages import LOCALAI, methods_of
from router.workers import Worker
from tests.router.canonical.hostile import ANYTHING
from tests.router.world import chat, own

PREDICT = methods_of(LOCALAI)["Predict"].request_class
FIELDS = (
    "messages", "prompt", "stream", "max_tokens", "temperature", "top_p", "top_k", "typical_p", "seed", "stop", "n", "echo",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "response_format", "tools", "tool_choice",
)  # fmt: skip
SCHEMAS = st.recursive(
    ANYTHING,
    lambda inner: st.dictionaries(
        st.sampled_from(
            ("type", "properties", "items", "enum", "const", "anyOf", "required", "title")
        ),
        inner | st.sampled_from(("object", "array", "string")) | st.lists(inner, max_size=3),
        max_size=4,
    ),
    max_leaves=12,
)
TELLING = {
    "messages": st.just([{"role": "user", "content": "hi"}])
    | st.lists(
        st.fixed_dictionaries({"role": st.text(max_size=4), "content": ANYTHING}), max_size=3
    ),
    "prompt": st.text(max_size=9) | st.lists(st.text(max_size=3), min_size=1, max_size=3),
    "logit_bias": st.dictionaries(st.text(max_size=3), st.integers() | st.floats(), max_size=3),
    "response_format": SCHEMAS.map(
        lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}
    ),
}


def worker() -> Worker:
    found = own("grpc://127.0.0.1:1").worker
    assert found is not None
    return found


@settings(max_examples=400, deadline=None)
@given(data=st.data(), kind=st.sampled_from((Kind.CHAT, Kind.COMPLETION)))
def test_any_request_is_mapped_or_refused(data: st.DataObject, kind: Kind) -> None:
    fields: dict[str, object] = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for name in data.draw(st.sets(st.sampled_from(FIELDS), max_size=4)):
        fields[name] = data.draw(TELLING.get(name, ANYTHING) | ANYTHING)
    try:
        body = orjson.dumps({"model": "llama", **fields})
    except TypeError:
        return  # a body that is not JSON cannot be sent
    with contextlib.suppress(WorkerError):
        request, mapped = MAPPING.read(chat(kind=kind, body=body), worker())
        for predict_fields in mapped.bodies:
            assert PREDICT(**predict_fields).ByteSize() > 0
            if request_mapping.uses_own_template(predict_fields):
                _, rendered = request_mapping.render_chat(request, predict_fields, "plain")
                assert PREDICT(**rendered).Prompt


@pytest.mark.parametrize("number", ["1e999", "123456789012345678901234567890"])
def test_a_logit_bias_is_finite_or_refused(number: str) -> None:
    body = b'{"model":"m","prompt":"x","logit_bias":{"5":%b}}' % number.encode()
    with contextlib.suppress(WorkerError):
        _, mapped = MAPPING.read(chat(kind=Kind.COMPLETION, body=body), worker())
        bias = orjson.loads(str(mapped.bodies[0]["LogitBias"]))
        assert isinstance(bias["5"], float)
