"""llama.cpp's own parameters, passed to a backend."""

from typing import Any

import pytest

from router.dialects import Dialect
from router.dialects.localai_grpc.request_mapping import LLAMA_CPP_NAMES, llama_cpp_fields
from router.dialects.localai_grpc.texts import MAPPING
from router.errors import WorkerRejected, WorkerUnable
from router.requests import Kind
from tests.router.dialects.localai_grpc.test_texts import ask
from tests.workers.localai_worker import LocalAIWorker

SAID = {
    "grammar": 'root ::= "yes" | "no"',
    "ignore_eos": True,
    "mirostat": 2,
    "mirostat_eta": 0.25,
    "mirostat_tau": 5,
    "n_keep": -1,
    "repeat_last_n": 32,
}


def test_each_parameter_is_sent_under_the_name_that_backends_use() -> None:
    assert set(SAID) == LLAMA_CPP_NAMES
    assert llama_cpp_fields(SAID) == {
        "Grammar": 'root ::= "yes" | "no"', "IgnoreEOS": True, "Mirostat": 2, "MirostatETA": 0.25, "MirostatTAU": 5.0,
        "NKeep": -1, "Repeat": 32,
    }  # fmt: skip
    assert llama_cpp_fields({"x": 1}) == {}


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_receives_the_parameters_of_llama_cpp(
    worker: LocalAIWorker, dialect: Dialect, kind: Kind, stream: bool
) -> None:
    answer, _ = await ask(dialect, worker, kind, stream=stream, **SAID)
    assert "x-modelvine-dropped-params" not in answer.headers
    request: Any = worker.asked
    assert (request.Grammar, request.IgnoreEOS, request.Mirostat) == (SAID["grammar"], True, 2)
    assert (request.MirostatETA, request.MirostatTAU) == (0.25, 5)
    assert (request.NKeep, request.Repeat) == (-1, 32)
    assert len(worker.received) == 1
    assert MAPPING.shaping == {"grammar"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", ["root"]),
        ("grammar", "x" * (256 * 1024 + 1)),
        ("ignore_eos", "yes"),
        ("mirostat", 3),
        ("mirostat_eta", 1.5),
        ("mirostat_tau", "5"),
        ("n_keep", -2),
        ("repeat_last_n", 1.5),
    ],
    ids=range(8),
)
async def test_a_wrong_value_is_named(
    worker: LocalAIWorker, dialect: Dialect, name: str, value: object
) -> None:
    with pytest.raises(WorkerRejected) as rejected:
        await ask(dialect, worker, **{name: value})
    assert rejected.value.status == 400
    assert f'"{name}"'.encode() in rejected.value.body
    assert not worker.received


async def test_a_grammar_beside_a_schema_is_refused(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    fields = {"grammar": SAID["grammar"], "response_format": {"type": "json_object"}}
    with pytest.raises(WorkerUnable) as unable:
        await ask(dialect, worker, **fields)
    assert unable.value.param == "grammar"
