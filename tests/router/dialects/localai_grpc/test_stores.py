"""Requests to a LocalAI backend that is a store."""

from base64 import b64encode
from collections.abc import Mapping
from math import nan
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canonical.retrieval import decode_value, encode_value
from router.dialects import Dialect
from router.dialects.localai_grpc import vectors
from router.dialects.localai_grpc.backend import METHODS, BackendJob
from router.errors import WorkerFailed, WorkerRejected
from router.requests import Kind
from tests.router.dialects.localai_grpc.asks import ask, no_image, request_of
from tests.workers.localai_worker import LocalAIWorker

URI = "data:application/octet-stream;base64,"


async def test_a_store_keeps_finds_and_forgets(dialect: Dialect, worker: LocalAIWorker) -> None:
    keys = [[0.5, 1], [3, 4]]
    _, payload = await ask(dialect, worker, Kind.STORE_SET, keys=keys, values=["a", "hé"])
    assert payload == {}
    _, payload = await ask(dialect, worker, Kind.STORE_GET, keys=[*keys, [9, 9]])
    assert payload == {"keys": keys, "values": ["a", "hé"]}
    _, payload = await ask(dialect, worker, Kind.STORE_FIND, key=[3, 0], topk=1)
    assert payload == {"keys": [[3, 4]], "values": ["hé"], "similarities": [1]}
    _, payload = await ask(dialect, worker, Kind.STORE_DELETE, keys=keys[:1])
    assert (payload, list(worker.stored)) == ({}, [(3, 4)])


@given(
    st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode(errors="replace"))
)
def test_any_bytes_of_a_value_are_returned_unchanged(value: bytes) -> None:
    assert decode_value(encode_value(value)) == value
    orjson.dumps(encode_value(value))


@given(st.text(max_size=30) | st.binary(max_size=9).map(lambda b: URI + b64encode(b).decode()))
def test_any_text_of_a_value_is_returned_unchanged(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert encode_value(decode_value(text)) == text


@pytest.mark.parametrize(
    ("kind", "call", "said"),
    [
        (Kind.STORE_GET, "StoresGet", {"Keys": [{"Floats": [1]}]}),
        (Kind.STORE_GET, "StoresGet", {"Keys": [{"Floats": [nan]}], "Values": [{}]}),
        (Kind.STORE_FIND, "StoresFind", {"Keys": [{"Floats": [1]}], "Values": [{}]}),
    ],
)
async def test_columns_of_different_lengths_are_failures(kind: Kind, call: str, said: Any) -> None:
    async def ask(name: str, _: Mapping[str, object]) -> Any:
        assert name == call
        return METHODS[call].reply_class(**said)

    with pytest.raises(WorkerFailed):
        await vectors.serve_store(BackendJob(request_of(kind), "llama", "own", ask, no_image))


@pytest.mark.parametrize(
    "words",
    [
        "local-store: Set: key length 3 does not match existing 2",
        "Try to add key with length 3 when existing length is 2",
    ],
)
async def test_keys_of_another_length_are_the_fault_of_the_caller(
    dialect: Dialect, worker: LocalAIWorker, words: str
) -> None:
    worker.fail(code="UNKNOWN", refusal=words.encode())
    with pytest.raises(WorkerRejected) as refused:
        await ask(dialect, worker, Kind.STORE_SET)
    error = orjson.loads(refused.value.body)["error"]
    assert (error["param"], refused.value.blames_worker) == ("keys", False)
    worker.fail(code="UNKNOWN", refusal=b"out of memory")
    with pytest.raises(WorkerFailed):
        await ask(dialect, worker, Kind.STORE_SET)
