"""Which exception does OpenAI's own client raise, for every row of docs/errors.md? Each error is provoked by real means."""

import asyncio
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import openai
import orjson
import pytest

from node.auth import errors as auth
from node.faces import errors as faces
from node.faces.errors import INNER, TABLE
from registry import errors as registry
from registry.signing import Identity
from router import errors as router
from router.openai.body import MAX_VALUES
from router.peers.headers import VIA
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import until
from tests.workers import tgi_worker
from tests.workers.openai_worker import WORDS, OpenAIWorker, running

pytestmark = pytest.mark.swarm

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROJECT = "errors"
HELLO = [{"role": "user", "content": "Hello!"}]
NOWHERE = "http://127.0.0.1:9/v1"
NOBODY = Identity(bytes(range(1, 33))).peer
REQUEST_ID = "asked-by-a-test"

PATIENCE = 1.0
"""Seconds that a node waits for a worker and for a caller's body; it waits less for a place in the queue."""

SETTINGS = {
    "router": {
        "first_byte_timeout": PATIENCE,
        "idle_timeout": PATIENCE,
        "keep_alive": 0.5,
        "max_body_bytes": 100_000,
        "max_event_bytes": 1024,
        "queue": 1,
        "queue_timeout": 0.4,
        "ready_timeout": 0.3,
    }
}


@dataclass(frozen=True, slots=True)
class Scene:
    """OpenAI's client at the node that is asked, and the node with the worker, which may be the same."""

    ai: openai.AsyncOpenAI
    client: Client
    asked: Node
    serving: Node
    worker: OpenAIWorker
    model: str

    async def chat(self, model: str | None = None, **options: Any) -> Any:
        name = self.model if model is None else model
        return await self.ai.chat.completions.create(model=name, messages=HELLO, **options)

    async def control(self, path: str, body: Mapping[str, object]) -> Any:
        """Ask the serving node for something that is not OpenAI's interface."""
        elsewhere = self.ai.with_options(base_url=f"{self.serving.http}/api")
        return await elsewhere.post(path, cast_to=object, body=body)

    async def register(self, model: str, api: str, **more: object) -> None:
        row = {"project": PROJECT, "model": model, "api": api, "type": 0, **more}
        await self.control("/v0/ai/model/register", row)


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> list[Node]:
    """A node with a worker, whose mesh can be struck dead, and one that has none."""
    serving = Start("serving", SETTINGS, module="tests.swarm.mortal_node")
    return swarm.start_all(serving, Start("asked", SETTINGS))


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, pair: list[Node], client: Client
) -> AsyncIterator[Scene]:
    """The scene, with both nodes alive; `request.param` is the number of hops to the node with the worker."""
    serving, asked = pair[0], pair[request.param]
    await client.met(pair)
    # A node remembers a worker's failures under this name.
    model = f"told-{uuid4().hex[:8]}"
    async with (
        running() as worker,
        openai.AsyncOpenAI(
            base_url=f"{asked.http}/v1",
            api_key="sk-nobody-checks-it",
            max_retries=0,
            timeout=20,
            default_headers={"x-request-id": REQUEST_ID},
        ) as ai,
    ):
        await client.register(serving, PROJECT, [model], worker.url)
        await client.listed([asked], model)
        yield Scene(ai, client, asked, serving, worker, model)
        await client.unregister(pair[0], PROJECT)


ELSEWHERE = {
    faces.HeadTooSlow,
    faces.NoRoomForBody,
    faces.TooManyConnections,
    registry.ProtocolViolation,
    router.WorkerAway,
}
"""Errors that one OpenAI client alone does not lead to: `tests/node/connections` does, a node that does not let another in, and
a hostile peer (`tests/registry/mesh/libp2p/test_offences.py`)."""

UNREAD = {faces.UrlTooLong, faces.HeadTooLarge}
"""Errors for requests that are refused before their id was read."""

Provocation = Callable[[Scene], Awaitable[None]]
CASES: list[tuple[type[Exception], int, Provocation]] = []
"""An error, the number of hops after which the client sees it, and what leads to it."""


def provokes(error: type[Exception], *, hops: tuple[int, ...] = (0, 1)) -> Callable[..., Any]:
    """Note which error a provocation leads to, at the node with the worker and one hop from it, or at one of the two."""

    def note(provocation: Provocation) -> Provocation:
        CASES.extend((error, number, provocation) for number in hops)
        return provocation

    return note


@provokes(faces.Unparseable)
async def a_body_that_is_not_packed_as_it_says(scene: Scene) -> None:
    await scene.chat(extra_headers={"Content-Encoding": "gzip"})


@provokes(faces.WrongParameter)
async def a_project_that_is_a_number(scene: Scene) -> None:
    await scene.chat(extra_body={"project": 7})


@provokes(faces.NotAllowed)
async def a_page_of_another_origin(scene: Scene) -> None:
    await scene.chat(extra_headers={"Origin": "https://evil.example"})


@provokes(faces.UnknownPath)
async def a_path_that_is_misspelt(scene: Scene) -> None:
    await scene.ai.post("/chat/completion", cast_to=object, body={})


@provokes(faces.WrongMethod)
async def another_method(scene: Scene) -> None:
    await scene.ai.get("/chat/completions", cast_to=object)


@provokes(faces.UrlTooLong)
async def a_path_without_end(scene: Scene) -> None:
    await scene.ai.get(f"/{'a' * 20_000}", cast_to=object)


@provokes(faces.HeadTooLarge)
async def a_header_without_end(scene: Scene) -> None:
    await scene.chat(extra_headers={"x-long": "a" * 40_000})


@provokes(faces.BadHead)
async def a_proxys_request_with_another_host(scene: Scene) -> None:
    async with httpx2.AsyncClient(proxy=scene.asked.http) as http:
        ai = scene.ai.with_options(base_url="http://192.0.2.1/v1", http_client=http)
        await ai.with_options(default_headers={"Host": "localhost"}).models.list()


@provokes(faces.UnknownNode, hops=(0,))
async def a_question_about_a_stranger(scene: Scene) -> None:
    await scene.control("/v0/peer", {"node_id": NOBODY})


@provokes(faces.BodyTooLarge)
async def a_body_that_is_too_long(scene: Scene) -> None:
    await scene.chat(user="x" * 100_000)


class Dribble(httpx2.AsyncByteStream):
    """A body whose second half comes when the node has long given up; OpenAI's client reads no answer before it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        middle = len(self._body) // 2
        yield self._body[:middle]
        await asyncio.sleep(3 * PATIENCE)
        yield self._body[middle:]


class Slowly(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.stream = Dribble(await request.aread())
        return await super().handle_async_request(request)


@provokes(faces.BodyTooSlow)
async def a_body_that_stops_in_the_middle(scene: Scene) -> None:
    async with httpx2.AsyncClient(transport=Slowly()) as http:
        slow = scene.ai.with_options(http_client=http)
        await slow.chat.completions.create(model=scene.model, messages=HELLO)


@provokes(faces.UnsupportedMediaType)
async def a_body_packed_in_an_unknown_way(scene: Scene) -> None:
    await scene.chat(extra_headers={"Content-Encoding": "zstd"})


@provokes(faces.UnsupportedExpectation)
async def an_expectation_that_nobody_meets(scene: Scene) -> None:
    await scene.chat(extra_headers={"Expect": "tea"})


@provokes(router.BadRequest)
async def no_model(scene: Scene) -> None:
    await scene.chat("")


@provokes(router.UnsupportedContentType)
async def a_body_of_another_content_type(scene: Scene) -> None:
    await scene.chat(extra_headers={"Content-Type": "text/plain"})


@provokes(router.TooManyParts)
async def a_body_of_too_many_values(scene: Scene) -> None:
    await scene.chat(extra_body={"zeros": [0] * MAX_VALUES})


@provokes(router.UnknownModel)
async def a_model_that_nobody_has(scene: Scene) -> None:
    await scene.chat("nobody-has-this")


@provokes(router.NoProvider)
async def a_service_that_nobody_offers(scene: Scene) -> None:
    await scene.ai.batches.list()


@provokes(router.NobodyServes)
async def a_node_that_drains(scene: Scene) -> None:
    await scene.control("/v1/drain", {})

    async def known() -> bool:
        nodes = (await scene.client.get(scene.asked, "/api/v1/catalog"))["nodes"]
        return any(n["node"] == scene.serving.peer and n["state"] == "draining" for n in nodes)

    try:
        await until(known, within=5, otherwise="it is not known that the node drains")
        await scene.chat()
    finally:
        await scene.control("/v1/undrain", {})


async def _crowd(scene: Scene) -> None:
    narrow = f"{scene.model}-narrow"
    await scene.register(narrow, scene.worker.url, capacity=1)
    await scene.client.listed([scene.asked], narrow)
    scene.worker.fail(delay_between=0.8)
    async with scene.client.stream(scene.serving, narrow) as response:
        assert response.status == 200
        await scene.chat(narrow)


@provokes(router.NoCapacity)
async def a_wait_for_a_slot_that_takes_too_long(scene: Scene) -> None:
    await _crowd(scene)


@provokes(router.WorkerUnreachable)
async def a_worker_that_is_gone(scene: Scene) -> None:
    gone = f"{scene.model}-gone"
    await scene.register(gone, NOWHERE)
    await scene.client.listed([scene.asked], gone)
    await scene.chat(gone)


@provokes(router.WorkerLoading)
async def a_worker_that_is_still_loading(scene: Scene) -> None:
    scene.worker.fail(status=503, refusal=b'{"error":{"message":"Loading model","code":503}}')
    await scene.chat()


@provokes(router.WorkerStale, hops=(0,))
async def a_worker_that_has_no_such_model(scene: Scene) -> None:
    scene.worker.fail(status=404, refusal=b'{"error":{"message":"no such model"}}')
    await scene.chat()


@provokes(router.WorkerTimeout)
async def a_worker_that_says_nothing(scene: Scene) -> None:
    scene.worker.fail(hang=True)
    await scene.chat()


@provokes(router.WorkerBusy)
async def a_worker_that_is_full(scene: Scene) -> None:
    scene.worker.fail(status=429, retry_after="7")
    await scene.chat()


@provokes(router.WorkerTooSmall)
async def a_worker_whose_proxy_takes_no_such_body(scene: Scene) -> None:
    scene.worker.fail(status=413, refusal=b"<html><h1>413 Request Entity Too Large</h1></html>")
    await scene.chat()


@provokes(router.WorkerFailed)
async def a_worker_that_fails(scene: Scene) -> None:
    scene.worker.fail(status=500)
    await scene.chat()


@provokes(router.WorkerFailed)
async def a_worker_that_answers_nonsense(scene: Scene) -> None:
    scene.worker.fail(garbage=True)
    await scene.chat()


@provokes(router.WorkerFailed)
async def a_stream_that_begins_with_an_error(scene: Scene) -> None:
    scene.worker.fail(error_first=True)
    await scene.chat(stream=True)


@provokes(router.WorkerDied)
async def a_worker_that_dies_before_it_answers(scene: Scene) -> None:
    scene.worker.fail(die_before_headers=True)
    await scene.chat()


@provokes(router.PoisonousRequest)
async def a_request_that_two_workers_die_of(scene: Scene) -> None:
    async with running() as second:
        await scene.register(scene.model, second.url, cid="2")
        await scene.client.agreed([scene.serving, scene.asked])
        scene.worker.fail(die_before_headers=True)
        second.fail(die_before_headers=True)
        await scene.chat()


@provokes(router.WorkerIncomplete)
async def a_tgi_server_that_cannot_end_its_text(scene: Scene) -> None:
    other = f"{scene.model}-tgi"
    async with tgi_worker.running() as worker:
        worker.fail(status=500, refusal=b'{"error":"no end","error_type":"incomplete_generation"}')
        await scene.register(other, worker.url.replace("http:", "tgi+http:"))
        await scene.client.listed([scene.asked], other)
        await scene.chat(other)


@provokes(router.WorkerRejected)
async def a_worker_that_refuses_without_a_word(scene: Scene) -> None:
    scene.worker.fail(status=400, refusal=b"")
    await scene.chat()


@provokes(router.WorkerUnable)
async def a_parameter_that_its_workers_protocol_has_no_word_for(scene: Scene) -> None:
    other = f"{scene.model}-tgi"
    await scene.register(other, NOWHERE.replace("http:", "tgi+http:"))
    await scene.client.listed([scene.asked], other)
    await scene.chat(other, extra_body={"guided_json": {"type": "object"}})


@provokes(router.Looped)
async def a_worker_that_is_a_node_which_had_passed_the_request_on(scene: Scene) -> None:
    await scene.chat(extra_headers={VIA: scene.serving.peer})


@provokes(router.AnswerBroken)
async def a_whole_answer_that_breaks_off(scene: Scene) -> None:
    scene.worker.fail(announce_bytes=900_000, pad_bytes=100_000, die_after=0, delay_between=0.2)
    await scene.ai.audio.speech.create(model=scene.model, voice="alloy", input="Hello!")


@provokes(registry.LimitReached, hops=(0,))
async def more_models_than_a_record_holds(scene: Scene) -> None:
    rows = [{"model": f"m{n}", "api": NOWHERE, "type": 0} for n in range(2_001)]
    await scene.control("/v0/ai/project/register", {"project": "vast", "models": rows})


@provokes(registry.StoreUnavailable, hops=(0,))
async def a_store_that_is_locked(scene: Scene) -> None:
    store = scene.serving.folder / "modelvine.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await scene.register("lost", NOWHERE)


@provokes(registry.PeerUnreachable, hops=(0,))
async def an_address_where_nobody_listens(scene: Scene) -> None:
    nowhere = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
    await scene.control("/v0/swarm/connect", {"node_addr": nowhere})


@provokes(registry.MeshDown, hops=(0,))
async def a_mesh_that_was_struck_dead(scene: Scene) -> None:
    os.kill(scene.serving.actor.process.pid, signal.SIGUSR1)
    for _ in range(500):
        try:
            await an_address_where_nobody_listens(scene)
        except openai.APIStatusError as error:
            if error.code != TABLE[registry.PeerUnreachable].reason:
                raise


async def key(scene: Scene, name: str = "", **fields: object) -> openai.AsyncOpenAI:
    """Return the client with a new key of the node that is asked."""
    entry = {"name": name or f"k{uuid4().hex[:8]}", **fields}
    created = await scene.client.post(scene.asked, "/api/v1/keys", {"keys": [entry]})
    assert created.status == 200, created.body
    return scene.ai.with_options(api_key=orjson.loads(created.body)["keys"][0]["key"])


async def chat(scene: Scene, ai: openai.AsyncOpenAI) -> None:
    await ai.chat.completions.create(model=scene.model, messages=HELLO)


@provokes(auth.KeyMissing)
async def a_caller_from_elsewhere_without_a_key(scene: Scene) -> None:
    await scene.chat(extra_headers={"Authorization": "", "X-Forwarded-For": "192.0.2.7"})


@provokes(auth.KeyUnknown)
async def a_key_that_nobody_made(scene: Scene) -> None:
    await chat(scene, scene.ai.with_options(api_key="mv_nobody"))


@provokes(auth.KeyExpired)
async def a_key_of_long_ago(scene: Scene) -> None:
    await chat(scene, await key(scene, expires=1.0))


@provokes(auth.KeyRevoked)
async def a_key_that_was_taken_back(scene: Scene) -> None:
    name = f"k{uuid4().hex[:8]}"
    ai = await key(scene, name)
    await scene.client.post(scene.asked, f"/api/v1/keys/{name}/revoke", {})
    await chat(scene, ai)


@provokes(auth.GrantRefused)
async def an_invitation_that_was_not_copied_whole(scene: Scene) -> None:
    created = await scene.client.post(scene.asked, "/api/v1/grants", {})
    cut = orjson.loads(created.body)["invitation"].partition(".")[0][:-8]
    await chat(scene, scene.ai.with_options(api_key=cut))


@provokes(auth.RoleNotAllowed)
async def a_key_for_looking(scene: Scene) -> None:
    await chat(scene, await key(scene, role="viewer"))


@provokes(auth.ModelNotAllowed)
async def a_key_for_other_models(scene: Scene) -> None:
    await chat(scene, await key(scene, models=["other*"]))


@provokes(auth.RateExceeded)
async def a_second_request_in_a_minute_for_one(scene: Scene) -> None:
    ai = await key(scene, rpm=1)
    for _ in range(2):
        await chat(scene, ai)


@provokes(auth.DaySpent)
async def more_tokens_than_a_day_has(scene: Scene) -> None:
    ai = await key(scene, tokens_per_day=1)
    for _ in range(2):
        await chat(scene, ai)


@provokes(auth.TooManyAtOnce)
async def a_second_request_at_one_time(scene: Scene) -> None:
    ai = await key(scene, concurrency=1)
    scene.worker.fail(hang=True)
    first = asyncio.ensure_future(chat(scene, ai))
    await until(lambda: bool(scene.worker.received), within=5, otherwise="the first is asked")
    try:
        await chat(scene, ai)
    finally:
        first.cancel()


@provokes(auth.KeyExists, hops=(0,))
async def a_key_for_a_name_that_has_one(scene: Scene) -> None:
    for _ in range(2):
        await scene.control("/v1/keys", {"keys": [{"name": "twice"}]})


@provokes(auth.NoSuchKey, hops=(0,))
async def the_end_of_a_key_that_nobody_has(scene: Scene) -> None:
    await scene.control("/v1/keys/nobody/revoke", {})


@provokes(faces.UnknownRequest, hops=(0,))
async def the_end_of_a_request_that_nobody_asks(scene: Scene) -> None:
    await scene.control("/v1/requests/nobody/cancel", {})


def _cases() -> Iterator[Any]:
    for error, hops, provocation in CASES:
        name = f"{error.__name__}-{provocation.__name__}-{hops} hops"
        yield pytest.param(hops, error, provocation, id=name)


@pytest.mark.parametrize(("scene", "error", "provoke"), [*_cases()], indirect=["scene"])
async def test_each_error_is_the_exception_that_the_docs_name_with_its_code_and_request_id(
    scene: Scene, error: type[Exception], provoke: Provocation
) -> None:
    row = TABLE[error]
    with pytest.raises(openai.APIStatusError) as caught:
        await provoke(scene)
    raised = caught.value
    assert (raised.status_code, raised.code, raised.type) == (row.status, row.reason, row.type), (
        raised
    )
    assert f"`{type(raised).__name__}`" in _documented(error)
    assert raised.request_id == REQUEST_ID or (error in UNREAD and raised.request_id)
    assert ("retry-after" in raised.response.headers) is ("`Retry-After`" in _documented(error))


def _documented(error: type[Exception]) -> str:
    """Return what the docs say of an error."""
    match = re.search(
        rf"^\| `{error.__name__}` .*$", (DOCS / "errors.md").read_text(), re.MULTILINE
    )
    assert match
    return match[0]


def test_every_error_that_a_caller_may_meet_is_provoked_here() -> None:
    assert {error for error, _, _ in CASES} | INNER | ELSEWHERE == set(TABLE)
    assert not [error for error, _, _ in CASES if error in INNER]


BREAKS: Mapping[str, Mapping[str, object]] = {
    "the worker dies": {"die_after": 3, "delay_between": 0.05},
    "the worker falls silent": {"stall_after": 3},
    "the worker is too slow": {"delay_between": 5.0},
}


@pytest.mark.parametrize("scene", [0, 1], indirect=True, ids=["0 hops", "1 hops"])
@pytest.mark.parametrize("how", BREAKS)
async def test_a_stream_that_breaks_raises_and_does_not_end_as_if_it_were_whole(
    scene: Scene, how: str
) -> None:
    scene.worker.fail(**BREAKS[how])
    stream = await scene.chat(stream=True)
    assert stream.response.headers["x-request-id"] == REQUEST_ID
    await _breaks(stream)


@pytest.mark.parametrize("scene", [0, 1], indirect=True, ids=["0 hops", "1 hops"])
async def test_a_stream_that_fails_after_comments_raises_with_the_code_of_the_failure(
    scene: Scene,
) -> None:
    scene.worker.fail(delay_first=30)
    stream = await scene.chat(stream=True)
    with pytest.raises(openai.APIError) as caught:
        await anext(aiter(stream))
    row = TABLE[router.WorkerTimeout]
    assert not isinstance(caught.value, openai.APIStatusError | openai.APIConnectionError)
    assert (caught.value.code, caught.value.type) == (row.reason, row.type)


@pytest.mark.parametrize("scene", [1], indirect=True, ids=["1 hops"])
async def test_a_stream_whose_node_is_killed_raises(
    scene: Scene, pair: list[Node], swarm: Swarm
) -> None:
    scene.worker.fail(delay_between=0.5)
    stream = await scene.chat(stream=True)
    await asyncio.to_thread(swarm.kill, scene.serving.actor)
    try:
        await _breaks(stream)
    finally:
        again = asyncio.to_thread(swarm.again, scene.serving, known=[scene.asked])
        pair[0] = await again


async def _breaks(stream: openai.AsyncStream[Any]) -> None:
    """Read a stream that breaks: some words and then an error of ours."""
    pieces: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(openai.APIError) as caught:
        await read()
    row = TABLE[router.AnswerBroken]
    assert not isinstance(caught.value, openai.APIStatusError | openai.APIConnectionError)
    assert (caught.value.code, caught.value.type) == (row.reason, row.type)
    assert 1 <= len(pieces) < len(WORDS)
