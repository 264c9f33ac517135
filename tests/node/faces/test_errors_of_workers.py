"""Failures of workers as a client sees them: whatever protocol a worker speaks, the same row of docs/errors.md.

Each stub is written from its protocol's specification; a client asks at the node with the worker, and one hop away.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import openai
import pytest

from node.faces.errors import TABLE
from registry.mesh.memory import MemoryNet
from router import errors
from tests.node.faces.assembly import World, node, openai_at, settings_of, until

HELLO = [{"role": "user", "content": "hi"}]
STUBS = {
    "openai": "http",
    "tgi": "tgi+http",
    "llama_stack": "llamastack+http",
    "localai": "grpc+localai",
    "remotellm": "grpc+remotellm",
}
"""Every protocol, and the scheme of its URLs."""

BEFORE: dict[str, tuple[dict[str, object], type[Exception] | tuple[type[Exception], ...]]] = {
    "refuses the request": ({"status": 400}, errors.WorkerRejected),
    "refuses a field": ({"status": 422}, errors.WorkerRejected),
    "is full": ({"status": 429, "retry_after": "7"}, errors.WorkerBusy),
    "fails": ({"status": 500}, errors.WorkerFailed),
    "talks nonsense": ({"garbage": True}, errors.WorkerFailed),
    "dies": ({"die_before_headers": True}, errors.WorkerDied),
    "is silent": ({"hang": True}, errors.WorkerTimeout),
}
"""Faults before the first byte, and the errors that they give."""


@dataclass(frozen=True, slots=True)
class Scene:
    ai: openai.AsyncOpenAI
    worker: Any
    protocol: str

    async def chat(self, **fields: Any) -> Any:
        return await self.ai.chat.completions.create(model="tiny", messages=HELLO, **fields)


@pytest.fixture(params=["serving", "asked"])
async def scene(request: pytest.FixtureRequest, protocol: str) -> AsyncIterator[Scene]:
    settings = settings_of(first_byte_timeout=0.5, queue_timeout=0.3, attempts=1)
    stub, world = import_module(f"tests.workers.{protocol}_worker"), World(MemoryNet())
    async with AsyncExitStack() as closing:
        # The worker outlives the nodes, so that no node looks for it at the end of the test.
        worker = await closing.enter_async_context(stub.running())
        one = await closing.enter_async_context(node(world, settings))
        two = await closing.enter_async_context(node(world, settings))
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        api = f"{STUBS[protocol]}://{worker.url.partition('://')[2]}"
        await one.register(worker, api=api)
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        asked_node = one if request.param == "serving" else two
        yield Scene(await closing.enter_async_context(openai_at(asked_node)), worker, protocol)


@pytest.fixture(params=STUBS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(expected: Any) -> set[tuple[int, str]]:
    classes = expected if isinstance(expected, tuple) else (expected,)
    return {(TABLE[error].status, TABLE[error].reason) for error in classes}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", BEFORE)
async def test_a_failure_before_the_first_byte_is_a_status(
    scene: Scene, way: str, stream: bool
) -> None:
    faults, expected = BEFORE[way]
    scene.worker.fail(**faults)
    with pytest.raises(openai.APIStatusError) as failed:
        await scene.chat(stream=stream)
    error = failed.value.response.json()["error"]
    if expected is errors.WorkerRejected:
        # The worker's error may name a code of its own.
        assert 400 <= failed.value.status_code <= 499
        assert error["type"]
    else:
        assert (failed.value.status_code, error["code"]) in rows(expected)
    if expected is errors.WorkerBusy:
        assert failed.value.response.headers["retry-after"] == "7"


async def test_a_worker_that_refuses_connections_is_a_status(scene: Scene) -> None:
    body = {"project": "p", "model": "gone", "api": f"{STUBS[scene.protocol]}://127.0.0.1:1"}
    base = str(scene.ai.base_url).removesuffix("/v1/")
    await scene.ai.with_options(base_url=f"{base}/api").post(
        "/v0/ai/model/register", cast_to=object, body=body
    )
    with pytest.raises(openai.APIStatusError) as failed:
        await scene.ai.chat.completions.create(model="gone", messages=HELLO)
    error = failed.value.response.json()["error"]
    assert (failed.value.status_code, error["code"]) in rows(errors.WorkerUnreachable)


@pytest.mark.parametrize("protocol", [name for name in STUBS if name != "openai"], indirect=True)
async def test_a_parameter_that_the_protocol_lacks_is_refused_by_name(scene: Scene) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await scene.chat(extra_body={"guided_choice": ["a", "b"]})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "guided_choice")
    assert scene.worker.received == []


@pytest.mark.parametrize("protocol", [n for n in STUBS if "http" in STUBS[n]], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_of_faults_reaches_the_caller(scene: Scene, stream: bool) -> None:
    fault = b'{"detail":[{"loc":["body","top_p"],"msg":"too high","type":"less_than_equal"}]}'
    scene.worker.fail(status=422, refusal=fault)
    with pytest.raises(openai.APIStatusError) as refused:
        await scene.chat(stream=stream)
    assert "top_p: too high" in refused.value.message
    assert refused.value.status_code in (400, 422)


# RemoteLLM has no streams.
@pytest.mark.parametrize("protocol", [name for name in STUBS if name != "remotellm"], indirect=True)
async def test_a_failure_after_the_first_byte_ends_the_stream_in_an_error(scene: Scene) -> None:
    scene.worker.fail(die_after=3, delay_between=0.01)
    ids: list[str] = []

    async def listen() -> None:
        async for chunk in await scene.chat(stream=True):
            ids.extend(chunk.id)

    with pytest.raises(openai.APIError) as broken:
        await listen()
    assert ids
    assert broken.value.code == TABLE[errors.AnswerBroken].reason
