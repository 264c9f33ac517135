"""Translation to a worker of another protocol and back, with a worker that answers in capitals."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web

from router.answer import Answer
from router.canonical.text import TextRequest
from router.errors import WorkerRejected
from router.http.translator import ProtocolMapping, Translator
from router.openai.text_writer import Event
from router.requests import Kind
from router.translate.request import MappedRequest, unheard
from router.translate.text import OutputPiece, in_one_piece
from router.workers import Worker
from tests.router.world import chat, links, own, whole


def mapped(request: TextRequest, _: Worker) -> MappedRequest:
    body = {"text": "hi", "stream": request.stream}
    return MappedRequest(
        "say", (body,), unheard(request), request.stream, {**body, "stream": False}
    )


def part(_: TextRequest, data: bytes) -> OutputPiece:
    return OutputPiece(over=True) if data == b"." else OutputPiece(data.decode())


def all_of_it(
    request: TextRequest, number: int, body: bytes, _: Callable[[str], str]
) -> list[Event]:
    return in_one_piece(request, number, OutputPiece(body.decode()))


MAPPING = ProtocolMapping(
    name="Capitals", kinds=frozenset({Kind.CHAT}), mapped=mapped, paths=("say",), part=part, whole=all_of_it,
)  # fmt: skip


class Capitals:
    """The worker; `streams` is its status for requests for a stream, `whole` for all others."""

    def __init__(self) -> None:
        self.streams = 200
        self.whole = 200
        self.asked: list[tuple[bool, str]] = []

    async def say(self, http: web.Request) -> web.Response:
        stream = orjson.loads(await http.read())["stream"]
        self.asked.append((stream, http.headers["accept"]))
        status = self.streams if stream else self.whole
        if status != 200 or not stream:
            return web.Response(status=status, text="HELLO")
        return web.Response(
            text="data: HEL\n\ndata: LO\n\ndata: .\n\n", content_type="text/event-stream"
        )


@asynccontextmanager
async def capitals() -> AsyncIterator[tuple[Capitals, str]]:
    worker, app = Capitals(), web.Application()
    app.router.add_post("/say", worker.say)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield worker, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(dialect: Translator, url: str, *, stream: bool) -> tuple[Answer, bytes]:
    async with dialect.answer(chat(stream=stream), own(url)) as answer:
        return answer, await whole(answer)


def text_of(body: bytes) -> str:
    parts = [orjson.loads(event[6:]) for event in body.split(b"\n\n")[:-2]]
    return "".join(c["delta"].get("content", "") for part in parts for c in part["choices"])


async def test_a_stream_is_requested_for_a_stream_and_a_whole_answer_otherwise() -> None:
    async with capitals() as (worker, url), links() as own_links:
        dialect = Translator(own_links, MAPPING)
        _, body = await ask(dialect, url, stream=False)
        assert orjson.loads(body)["choices"][0]["message"]["content"] == "HELLO"
        _, streamed = await ask(dialect, url, stream=True)
        assert text_of(streamed) == "HELLO"
        assert worker.asked == [
            (False, "application/json"),
            (True, "text/event-stream, application/json;q=0.5"),
        ]


@pytest.mark.parametrize("status", [400, 406, 422])
async def test_a_worker_that_refuses_to_stream_is_retried_without_and_then_never_asked_to(
    status: int,
) -> None:
    async with capitals() as (worker, url), links() as own_links:
        worker.streams = status
        dialect = Translator(own_links, MAPPING)
        for _ in range(2):
            answer, body = await ask(dialect, url, stream=True)
            assert (answer.streamed, text_of(body)) == (True, "HELLO")
        assert [streamed for streamed, _ in worker.asked] == [True, False, False]


async def test_a_refusal_by_a_worker_that_has_streamed_is_not_retried() -> None:
    async with capitals() as (worker, url), links() as own_links:
        dialect = Translator(own_links, MAPPING)
        await ask(dialect, url, stream=True)
        worker.streams = worker.whole = 422
        with pytest.raises(WorkerRejected):
            await ask(dialect, url, stream=True)
        # The worker has streamed before, and its refusal does not mention streams.
        assert [streamed for streamed, _ in worker.asked] == [True, True]


async def test_a_worker_that_answers_a_probe_at_all_is_alive() -> None:
    async with capitals() as (_, url), links() as own_links:
        dialect = Translator(own_links, MAPPING)
        worker, nobody = own(url).worker, own("http://127.0.0.1:1").worker
        assert worker
        assert nobody
        assert await dialect.alive(worker)
        assert not await dialect.alive(nobody)
        assert await dialect.slots(worker) == 0
