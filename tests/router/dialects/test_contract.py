"""The contract of all dialects, for every dialect name and every way to the worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import orjson
import pytest
from _pytest.mark.structures import ParameterSet
from yarl import URL

from router import dialects
from router.answer import Answer, Route
from router.dialects import Dialect, Recognises
from router.dialects.openai_http.endpoints import endpoint
from router.errors import (
    AnswerBroken,
    WorkerBusy,
    WorkerDied,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnreachable,
)
from router.requests import MODEL_KINDS, Kind, PassedHeaders, Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.worker_description import WorkerDescription
from tests.router.peer_node import at, peer_node, way_to
from tests.router.world import MODEL, QUICK, chat, links, own, until, whole
from tests.workers.openai_worker import OpenAIWorker, running

IMPATIENT = QUICK.model_copy(update={"first_byte_timeout": 0.3})


@dataclass(frozen=True, slots=True)
class Subject:
    """A dialect, the candidate it is given, and the worker at the far end."""

    dialect: Dialect
    candidate: Candidate
    worker: Any  # the stub of the protocol; all stubs have the same options
    route: Route


@asynccontextmanager
async def local(settings: RouterSettings) -> AsyncIterator[Subject]:
    async with running() as worker, links(settings) as own_links:
        dialect = dialects.load("openai_http")(own_links)
        yield Subject(dialect, own(worker.url), worker, Route.LOCAL)


def translated(name: str) -> Callable[[RouterSettings], AbstractAsyncContextManager[Subject]]:
    """Return a subject of the dialect and the stub of its protocol, `tests/workers/PROTOCOL_worker.py`."""
    stub = import_module(f"tests.workers.{name.rpartition('_')[0]}_worker")

    @asynccontextmanager
    async def subject(settings: RouterSettings) -> AsyncIterator[Subject]:
        async with stub.running() as worker, links(settings) as own_links:
            yield Subject(dialects.load(name)(own_links), own(worker.url), worker, Route.LOCAL)

    return subject


def remote(
    *, direct: bool, relayed: bool = False
) -> Callable[[RouterSettings], AbstractAsyncContextManager[Subject]]:
    @asynccontextmanager
    async def subject(settings: RouterSettings) -> AsyncIterator[Subject]:
        async with (
            running() as worker,
            peer_node(own(worker.url)) as node,
            way_to(node, direct=direct, relayed=relayed, settings=settings) as own_links,
        ):
            route = Route.RELAY if relayed else Route.DIRECT
            yield Subject(dialects.load("peer")(own_links), at(node), worker, route)

    return subject


SUBJECTS = {
    "openai_http": [local],
    "peer": [
        remote(direct=True),
        remote(direct=False),
        remote(direct=False, relayed=True),
    ],
}
"""Every dialect whose worker speaks its callers' protocol, with the ways to it."""

TRANSLATING = tuple(name for name in dialects.NAMES if name not in SUBJECTS)
"""Dialects that translate: the caller's bytes are not the worker's."""

SUBJECTS |= {name: [translated(name)] for name in TRANSLATING}


def cases(names: Iterable[str]) -> list[ParameterSet]:
    return [
        pytest.param(subject, id=f"{name}-{number}")
        for name in names
        for number, subject in enumerate(SUBJECTS[name])
    ]


CASES = cases(SUBJECTS)


@pytest.fixture(params=CASES)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param(QUICK) as made:
        yield made


AT_ONCE = {"remotellm_grpc"}
"""Dialects whose protocol has no streams: a caller's stream comes in one piece."""


@pytest.fixture(params=cases(name for name in SUBJECTS if name not in AT_ONCE))
async def streaming(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param(QUICK) as made:
        yield made


@pytest.fixture(params=cases(name for name in SUBJECTS if name not in TRANSLATING))
async def passing(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param(QUICK) as made:
        assert isinstance(made.worker, OpenAIWorker)
        yield made


@pytest.fixture(params=CASES)
async def impatient(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param(IMPATIENT) as made:
        yield made


async def ask(subject: Subject, request: Request) -> tuple[Answer, bytes]:
    async with subject.dialect.answer(request, subject.candidate) as answer:
        return answer, await whole(answer)


def test_a_dialect_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="openai_http"):
        dialects.load("smoke_signals")


async def test_a_whole_answer_comes_with_its_length_and_the_way_it_took(subject: Subject) -> None:
    answer, body = await ask(subject, chat())
    assert (answer.status, answer.route, answer.length) == (200, subject.route, len(body))
    assert answer.content_type.startswith("application/json")
    assert orjson.loads(body)["model"] == MODEL
    assert subject.worker.received[0].headers["x-request-id"] == "r-1"


@pytest.fixture(params=cases(name for name in SUBJECTS if name != "peer"))
async def beside(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """A subject whose worker is on this machine."""
    async with request.param(QUICK) as made:
        yield made


async def test_the_operators_headers_are_sent_with_every_request_and_probe(beside: Subject) -> None:
    worker = beside.candidate.worker
    assert worker is not None
    keyed = replace(worker, headers=(("authorization", "Bearer ours"),))
    caller_headers = {"authorization": "Bearer caller", "cookie": "c=1"}
    candidate = replace(beside.candidate, worker=keyed)
    await ask(
        replace(beside, candidate=candidate), replace(chat(), passed=PassedHeaders(caller_headers))
    )
    assert await beside.dialect.alive(keyed)
    await beside.dialect.slots(keyed)
    seen = [request.headers for request in (*beside.worker.received, *beside.worker.probed)]
    assert len(seen) >= 2
    assert {headers.get("authorization") for headers in seen} == {"Bearer ours"}
    assert all("cookie" not in headers for headers in seen)


async def test_a_worker_describes_itself(beside: Subject) -> None:
    worker = beside.candidate.worker
    assert worker is not None
    description = await beside.dialect.describe(worker)
    assert description is not None
    assert description.model_of(worker).context >= 0


async def test_a_dialect_that_recognises_workers_knows_its_own_and_no_worker_at_an_empty_port(
    beside: Subject,
) -> None:
    worker = beside.candidate.worker
    assert worker is not None
    if isinstance(beside.dialect, Recognises):
        known = await beside.dialect.recognise(worker)
        assert known.said is not None
        assert known.asked
        gone = replace(worker, api=str(URL(worker.api).with_port(9)))
        unknown = await beside.dialect.recognise(gone)
        assert (unknown.said, bool(unknown.came)) == (None, True)


async def test_a_worker_whose_key_cannot_be_had_is_not_asked(beside: Subject) -> None:
    worker = beside.candidate.worker
    assert worker is not None
    keyed = replace(worker, headers=(("authorization", "Bearer @/no/such/file"),))
    with pytest.raises(WorkerFailed, match="'authorization'"):
        await ask(replace(beside, candidate=replace(beside.candidate, worker=keyed)), chat())
    assert not await beside.dialect.alive(keyed)
    assert await beside.dialect.slots(keyed) == 0
    assert await beside.dialect.describe(keyed) in (None, WorkerDescription())
    assert beside.worker.received == beside.worker.probed == []


async def test_the_worker_receives_the_callers_own_bytes(passing: Subject) -> None:
    answer, _ = await ask(passing, chat())
    assert answer.content_type == "application/json; charset=utf-8"
    assert passing.worker.received[0].body == chat().body


async def test_a_stream_flows_and_ends_with_done(streaming: Subject) -> None:
    streaming.worker.fail(delay_between=0.02)
    async with streaming.dialect.answer(chat(stream=True), streaming.candidate) as answer:
        chunks = [answer.first, *[chunk async for chunk in answer.rest]]
    assert answer.streamed
    assert len(chunks) >= 6
    assert chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_a_stream_is_the_workers_own_bytes_as_they_come(passing: Subject) -> None:
    passing.worker.fail(delay_between=0.02)
    async with passing.dialect.answer(chat(stream=True), passing.candidate) as answer:
        chunks = [answer.first, *[chunk async for chunk in answer.rest]]
    assert answer.streamed
    assert len(chunks) >= 7
    assert b"".join(chunks) == b"".join(passing.worker.events(MODEL, usage=True))


@pytest.mark.parametrize("kind", MODEL_KINDS)
async def test_every_kind_of_request_goes_to_its_path(passing: Subject, kind: Kind) -> None:
    await ask(passing, chat(kind=kind))
    assert passing.worker.received[0].path == endpoint("", kind).path


async def test_megabytes_pass_both_ways(passing: Subject) -> None:
    passing.worker.fail(pad_bytes=3_000_000)
    body = b'{"model":"llama","image":"' + b"a" * 3_000_000 + b'"}'
    _, answered = await ask(passing, chat(kind=Kind.IMAGE_EDIT, body=body))
    assert passing.worker.received[0].body == body
    assert len(orjson.loads(answered)["pad"]) == 3_000_000


async def test_many_requests_at_once_do_not_mix(passing: Subject) -> None:
    async def one(number: int) -> bool:
        body = b'{"model":"llama","n":%d}' % number
        _, answered = await ask(passing, chat(body=body))
        return orjson.loads(answered)["model"] == MODEL

    assert all(await asyncio.gather(*map(one, range(30))))
    assert {received.body for received in passing.worker.received} == {
        b'{"model":"llama","n":%d}' % number for number in range(30)
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 400}, WorkerRejected),
        ({"status": 413}, WorkerRejected),
        ({"status": 415}, WorkerRejected),
        ({"status": 422}, WorkerRejected),
        ({"status": 429, "retry_after": "7"}, WorkerBusy),
        ({"status": 500}, WorkerFailed),
        ({"garbage": True}, WorkerFailed),
        ({"die_before_headers": True}, WorkerDied),
    ],
)
async def test_a_failure_before_the_first_byte_is_an_error_of_the_attempt(
    subject: Subject, faults: dict[str, object], error: Any, stream: bool
) -> None:
    subject.worker.fail(**faults)
    with pytest.raises(error) as failed:
        await ask(subject, chat(stream=stream))
    match failed.value:
        case WorkerRejected(status=status, body=body):
            assert 400 <= status <= 499
            assert body == subject.worker.faults.refusal
        case WorkerBusy(retry_after=seconds):
            assert seconds == 7


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_a_refusal_keeps_its_status(passing: Subject, status: int) -> None:
    passing.worker.fail(status=status)
    with pytest.raises(WorkerRejected) as refused:
        await ask(passing, chat())
    assert refused.value.status == status
    assert refused.value.elsewhere is (status == 413)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_code_other_than_zero_in_a_body_is_a_failure(
    passing: Subject, stream: bool
) -> None:
    passing.worker.fail(code=1007)
    with pytest.raises(WorkerFailed):
        await ask(passing, chat(stream=stream))


async def test_a_worker_that_dies_in_mid_stream_never_ends_it_silently(streaming: Subject) -> None:
    streaming.worker.fail(die_after=3, delay_between=0.01)
    async with streaming.dialect.answer(chat(stream=True), streaming.candidate) as answer:
        body = answer.first
        try:
            async for chunk in answer.rest:
                body += chunk
        except AnswerBroken:
            body += b'"error"'
    assert b'"error"' in body
    assert b"[DONE]" not in body


async def test_silence_before_the_first_byte_times_out(impatient: Subject) -> None:
    impatient.worker.fail(hang=True)
    with pytest.raises(WorkerTimeout) as late:
        await ask(impatient, chat(stream=True))
    assert late.value.phase == "first byte"
    await until(lambda: impatient.worker.hung_up == 1)


@pytest.mark.parametrize("faults", [{"hang": True}, {"delay_first": 60}])
async def test_the_worker_notices_a_caller_that_leaves_before_the_first_byte(
    subject: Subject, faults: dict[str, object]
) -> None:
    subject.worker.fail(**faults)
    caller = asyncio.ensure_future(ask(subject, chat(stream=True)))
    await until(lambda: len(subject.worker.received) == 1)
    caller.cancel()
    await until(lambda: subject.worker.hung_up == 1)
    assert caller.cancelled()


async def test_the_worker_notices_a_caller_that_leaves_in_mid_stream(
    streaming: Subject,
) -> None:
    streaming.worker.fail(delay_between=0.05)
    async with streaming.dialect.answer(chat(stream=True), streaming.candidate) as answer:
        async for _ in answer.rest:
            break
    await until(lambda: streaming.worker.hung_up == 1)


async def test_the_worker_notices_a_caller_that_is_cancelled_in_mid_stream(
    streaming: Subject,
) -> None:
    streaming.worker.fail(delay_between=30)
    began = asyncio.Event()

    async def call() -> None:
        async with streaming.dialect.answer(chat(stream=True), streaming.candidate) as answer:
            began.set()
            await whole(answer)

    caller = asyncio.ensure_future(call())
    await asyncio.wait_for(began.wait(), 2)
    caller.cancel()
    await until(lambda: streaming.worker.hung_up == 1)


@pytest.mark.parametrize("name", dialects.NAMES)
async def test_an_address_without_a_worker_is_unreachable(name: str) -> None:
    async with links() as own_links:
        nobody = own("http://127.0.0.1:1")
        with pytest.raises(WorkerUnreachable):
            async with dialects.load(name)(own_links).answer(chat(), nobody):
                pass
