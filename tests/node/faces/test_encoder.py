"""A face with a protocol of its own: its answers, streams and failures take the common path, in its own encoding."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web

from node.auth.principal import ANYBODY
from node.faces.app import application
from node.faces.encoder import AnswerForm, TextEncoder, WithoutDone
from node.faces.errors import Refusal
from node.faces.model_call import model_answer
from node.faces.openai import request_of
from node.faces.request_reader import read_fields
from node.faces.respond import answer
from node.listeners import serve
from router.errors import AnswerBroken, UnknownModel
from router.openai import text_parser
from router.openai.text_writer import Delta
from router.openai.usage import Usage
from router.requests import Kind, Request
from tests.node.faces.assembly import until
from tests.workers import tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


class Shouting(TextEncoder):
    """Encoder that writes texts in capitals, and everything else as plainly as can be."""

    def opening(self):
        return b"HARK "

    def closing(self):
        return b" END"

    def answer(self, events):
        return {"shout": text_parser.text_of(events).upper(), "why": text_parser.reason_of(events)}

    def events(self, events):
        return b"".join(e.text.upper().encode() for e in events if isinstance(e, Delta))

    def failure(self, failure):
        return f" ALAS {failure.code}".encode()


def refuse(refused: Refusal) -> Refusal:
    return Refusal(418, {"alas": refused.body["error"]["code"]}, refused.headers)


def face(context):
    async def handle(http):
        async def ask():
            fields = await read_fields(http, context.settings)
            streams = fields.get("stream") is True
            chat = {name: value for name, value in fields.items() if name != "pitch"}
            dropped = ("pitch",) if "pitch" in fields else ()
            request = request_of(context, http, Kind.CHAT, orjson.dumps(chat))
            encoder = Shouting(Kind.CHAT, streams=streams, max_event_bytes=99_999)
            return AnswerForm(request, encoder, dropped)

        return await answer(context, http, Kind.CHAT, ask, refuse=refuse)

    return [web.post("/shout", handle)]


@asynccontextmanager
async def listening(context):
    async with AsyncExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        app = application(face(context), context.access.admit)
        await serve(app, listener, closing, context.settings.web, context.metrics.connections)
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield await closing.enter_async_context(aiohttp.ClientSession(base))


@pytest.fixture(params=["serving", "asked"])
async def shouting(request, mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    async with listening((mesh.one if request.param == "serving" else mesh.two).context) as http:
        yield http


@pytest.fixture
async def tgi():
    async with tgi_worker.running() as worker:
        yield worker


async def test_an_answer_in_one_piece_is_encoded_by_the_face(shouting):
    async with shouting.post("/shout", json=ASKED) as response:
        assert await response.json() == {"shout": SAID.upper(), "why": "stop"}
        assert response.headers["x-modelvine-attempts"] == "1"


async def test_a_stream_is_encoded_by_the_face(shouting):
    async with shouting.post("/shout", json=ASKED | {"stream": True}) as response:
        assert response.content_type == "text/event-stream"
        assert await response.text() == f"HARK {STREAMED.upper()} END"


async def test_a_stream_that_breaks_off_ends_in_a_failure_without_a_closing(shouting, worker):
    worker.fail(die_after=3)
    async with shouting.post("/shout", json=ASKED | {"stream": True}) as response:
        text = await response.text()
    assert text.startswith("HARK ")
    assert text.endswith(" ALAS answer_broken")


async def test_a_stream_without_finish_reason_and_done_ends_in_a_failure(shouting, worker):
    worker.fail(no_done=True)
    async with shouting.post("/shout", json=ASKED | {"stream": True}) as response:
        assert (await response.text()).endswith(" ALAS answer_broken")


@pytest.mark.parametrize("fault", [{"finish": "stop"}, {"finish": "stop", "no_done": True}])
async def test_a_finish_reason_or_an_end_marker_completes_a_stream(shouting, worker, fault):
    worker.fail(**fault)
    async with shouting.post("/shout", json=ASKED | {"stream": True}) as response:
        assert (await response.text()).endswith(" END")


async def test_errors_before_the_first_byte_are_in_the_shape_of_the_face(shouting):
    async with shouting.post("/shout", json=ASKED | {"model": "none"}) as response:
        assert (response.status, await response.json()) == (418, {"alas": "model_not_found"})


async def test_an_answer_that_is_not_openais_is_a_failed_worker(shouting, worker):
    worker.fail(garbage=True)
    async with shouting.post("/shout", json=ASKED) as response:
        assert (response.status, await response.json()) == (418, {"alas": "worker_failed"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_parameter_that_the_face_drops_is_named(shouting, stream):
    async with shouting.post("/shout", json=ASKED | {"pitch": 1, "stream": stream}) as response:
        assert response.headers["x-modelvine-dropped-params"] == "pitch"


async def test_parameters_that_face_and_worker_drop_are_named_together(mesh, tgi):
    await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
    fields = ASKED | {"pitch": 1, "top_k": 2}
    async with (
        listening(mesh.one.context) as shouting,
        shouting.post("/shout", json=fields) as response,
    ):
        assert response.headers["x-modelvine-dropped-params"] == "pitch, top_k"


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x"])
async def test_a_body_that_is_no_json_is_refused(shouting, content_type):
    headers = {"content-type": content_type}
    async with shouting.post("/shout", data=b"{}", headers=headers) as response:
        assert (response.status, await response.json()) == (418, {"alas": "unsupported_media_type"})


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(shouting, worker):
    worker.fail(delay_between=60)
    async with shouting.post("/shout", json=ASKED | {"stream": True}) as response:
        await response.content.readexactly(5)
        response.close()
    await until(lambda: worker.hung_up == 1)


class TestAsking:
    def request(self, **fields) -> Request:
        body = orjson.dumps(ASKED | fields)
        stream = fields.get("stream") is True
        name = str(fields.get("model", "tiny"))
        return Request("r1", Kind.CHAT, name, body, "application/json", stream=stream)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_events_are_parsed_as_they_come(self, served, stream):
        options = {"stream_options": {"include_usage": True}} if stream else {}
        request = self.request(stream=stream, **options)
        async with model_answer(served.context, ANYBODY, request) as reply:
            parts = [event async for events in reply.events() for event in events]
        assert text_parser.text_of(parts) == (STREAMED if stream else SAID)
        assert text_parser.reason_of(parts) == "stop"
        assert text_parser.usage_of(parts) == (Usage(5, 6) if stream else None)

    async def test_a_stream_without_finish_reason_and_done_raises(self, served, worker):
        worker.fail(no_done=True)
        async with model_answer(served.context, ANYBODY, self.request(stream=True)) as reply:
            with pytest.raises(AnswerBroken, match="broke off"):
                _ = [events async for events in reply.events()]

    async def test_errors_of_the_router_are_raised(self, served):
        with pytest.raises(UnknownModel):
            async with model_answer(served.context, ANYBODY, self.request(model="none")):
                pass

    async def test_a_request_is_counted(self, served):
        async with model_answer(served.context, ANYBODY, self.request()) as reply:
            assert orjson.loads(await reply.body())["choices"]
        async with served.http.get("/metrics") as response:
            text = await response.text()
        assert 'modelvine_requests_total{kind="chat/completions",status="200"} 1.0' in text

    async def test_cancelling_early_cancels_the_request_at_the_worker(self, served, worker):
        worker.fail(delay_between=60)

        async def ask() -> None:
            async with model_answer(served.context, ANYBODY, self.request(stream=True)) as reply:
                _ = [events async for events in reply.events()]

        async with asyncio.TaskGroup() as group:
            work = group.create_task(ask())
            await until(lambda: served.context.router.in_flight.total() == 1 and worker.received)
            work.cancel()
        await until(lambda: worker.hung_up == 1)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_last_event_is_removed_and_an_error_found_whatever_ends_the_lines(end):
    piece = b"data: {}" + end + end
    assert WithoutDone().encode_events(piece + b"data: [DONE]" + end + end) == piece
    with pytest.raises(AnswerBroken):
        WithoutDone().encode_events(piece + b'data: {"error":{}}' + end + end)
