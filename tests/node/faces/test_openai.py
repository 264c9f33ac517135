"""OpenAI's interface at a node: bytes pass through, streams flow, failures are told, hanging up reaches the worker."""

import asyncio
import gzip
import logging
import re
import zlib

import aiohttp
import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.answering import WholeEvents
from registry.mesh.memory_net import MemoryNet
from registry.records import Standing
from registry.signing import Identity
from router.requests import Kind
from tests.node.faces.assembly import World, node, settings_of, until
from tests.workers.openai_worker import WORDS, OpenAIWorker

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}
PATH = "/v1/chat/completions"
STRANGER = Identity(bytes(range(32))).peer


async def told(call):
    """The status and the JSON body of an answer."""
    async with call as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


@pytest.fixture
async def served(alone, worker):
    """A node with a worker for the model `tiny`."""
    await alone.register(worker)
    return alone


class TestAnAnswer:
    async def test_is_the_workers_own_and_says_who_gave_it(self, served):
        async with served.http.post(PATH, json=CHAT) as response:
            body = await response.json()
            assert response.status == 200
            assert body["choices"][0]["message"]["content"] == "".join(WORDS)
            assert response.headers["x-modelvine-node"] == served.context.peer
            assert response.headers["x-modelvine-route"] == "local"
            assert response.headers["x-modelvine-attempts"] == "1"
            assert response.headers["Content-Length"]

    async def test_carries_the_callers_request_id_or_a_new_one(self, served, worker):
        async with served.http.post(PATH, json=CHAT, headers={"x-request-id": "my.id-1"}) as r:
            assert r.headers["x-request-id"] == "my.id-1"
        assert worker.received[-1].headers["x-request-id"] == "my.id-1"
        for bad in ("with space", "x" * 65, "sl/ash"):
            async with served.http.post(PATH, json=CHAT, headers={"x-request-id": bad}) as r:
                assert len(r.headers["x-request-id"]) == 32

    @pytest.mark.parametrize("prefix", ["/v1", "/v1/openai/v1"])
    @pytest.mark.parametrize("kind", Kind)
    async def test_comes_on_every_path_that_runs_a_model(self, served, worker, prefix, kind):
        async with served.http.post(f"{prefix}/{kind.value}", json=CHAT) as response:
            assert response.status == 200
        assert worker.received[-1].path == f"/v1/{kind.value}"

    async def test_reaches_a_client_of_another_node(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        async with mesh.two.http.post(PATH, json=CHAT) as response:
            assert response.status == 200
            assert response.headers["x-modelvine-node"] == mesh.one.context.peer
            assert response.headers["x-modelvine-route"] == "direct"

    async def test_that_is_long_comes_in_pieces_and_whole(self, served, worker):
        worker.fail(pad_bytes=9_000_000)
        async with served.http.post(PATH, json=CHAT) as response:
            assert len((await response.json())["pad"]) == 9_000_000

    async def test_that_is_long_and_breaks_off_is_seen_to_break_off(self, served, worker):
        worker.fail(pad_bytes=9_000_000, announce_bytes=12_000_000, die_after=0)
        async with served.http.post(PATH, json=CHAT) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


class TestARequest:
    async def test_reaches_the_worker_byte_for_byte(self, served, worker):
        body = b'{ "model":"tiny",  "messages": [], "unknown": {"kept": 1.50} }'
        headers = {"Content-Type": "application/json; charset=utf-8"}
        async with served.http.post(PATH, data=body, headers=headers) as response:
            assert response.status == 200
        assert worker.received[-1].body == body

    async def test_never_carries_the_callers_keys_to_a_worker(self, served, worker):
        headers = {"Authorization": "Bearer secret", "Cookie": "a=b", "traceparent": "00-1-2-01"}
        async with served.http.post(PATH, json=CHAT, headers=headers) as response:
            assert response.status == 200
        seen = worker.received[-1].headers
        assert "secret" not in str(seen)
        assert "Cookie" not in seen
        assert seen["traceparent"] == "00-1-2-01"

    async def test_may_come_without_a_content_type_when_it_looks_like_json(self, served):
        skip = {"skip_auto_headers": ["Content-Type"]}
        async with served.http.post(PATH, data=orjson.dumps(CHAT), **skip) as response:
            assert response.status == 200

    @pytest.mark.parametrize(
        ("encoding", "pack"),
        [
            ("gzip", gzip.compress),
            ("deflate", zlib.compress),
            ("deflate", lambda body: zlib.compress(body)[2:-4]),
            ("identity", bytes),
        ],
    )
    async def test_may_come_packed(self, served, worker, encoding, pack):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        data = pack(orjson.dumps(CHAT))
        async with served.http.post(PATH, data=data, headers=headers) as response:
            assert response.status == 200
        assert orjson.loads(worker.received[-1].body) == CHAT

    async def test_may_be_a_form_which_passes_as_it_came(self, served, worker):
        form = aiohttp.FormData()
        form.add_field("model", "tiny")
        form.add_field("prompt", "a hat")
        form.add_field("image", b"\x89PNG\r\n\x00", filename="a.png", content_type="image/png")
        async with served.http.post("/v1/images/edits", data=form) as response:
            assert response.status == 200
        assert b"\x89PNG\r\n\x00" in worker.received[-1].body

    async def test_may_name_the_project_in_the_models_name_the_body_or_a_header(self, served):
        for named, headers in (
            ({"model": "p/tiny"}, {}),
            ({"project": "p"}, {}),
            ({}, {"x-modelvine-project": "p"}),
            ({}, {"x-modelvine-node": served.context.peer}),
            ({}, {"x-modelvine-cid": ""}),
        ):
            async with served.http.post(PATH, json=CHAT | named, headers=headers) as response:
                assert response.status == 200, named

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-modelvine-project": "q"},
            {"x-modelvine-cid": "another"},
            {"x-modelvine-node": STRANGER},
        ],
    )
    async def test_that_insists_on_what_nobody_has_is_not_answered_by_another(
        self, served, worker, headers
    ):
        status, body = await told(served.http.post(PATH, json=CHAT, headers=headers))
        assert (status, body["code"]) == (404, 1017)
        assert worker.received == []

    async def test_that_another_node_sent_on_stays_here(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        headers = {"x-modelvine-hop": mesh.one.context.peer}
        async with mesh.two.http.post(PATH, json=CHAT, headers=headers) as response:
            assert response.status in (404, 503)
        assert worker.received == []


class TestAStream:
    ASKED = CHAT | {"stream": True}

    async def test_comes_event_by_event_while_the_worker_still_works(self, served, worker):
        worker.fail(delay_between=60)
        async with served.http.post(PATH, json=self.ASKED) as response:
            assert response.content_type == "text/event-stream"
            async with asyncio.timeout(5):
                assert await response.content.readuntil(b"\n\n") == b": alive\n\n"
                event = await response.content.readuntil(b"\n\n")
            assert orjson.loads(event[6:])["choices"][0]["delta"]["role"] == "assistant"

    async def test_ends_with_done(self, served):
        async with served.http.post(PATH, json=self.ASKED) as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")

    async def test_that_breaks_off_ends_with_an_error_event_and_without_done(self, served, worker):
        worker.fail(die_after=2)
        async with served.http.post(PATH, json=self.ASKED) as response:
            assert response.status == 200
            events = (await response.read()).split(b"\n\n")
        assert events.pop() == b""
        assert orjson.loads(events[-2][6:])["choices"]
        assert orjson.loads(events[-1][6:])["error"]["code"] == "answer_broken"
        assert b"data: [DONE]" not in events

    async def test_whose_caller_hangs_up_is_given_up_at_the_worker(self, served, worker):
        worker.fail(delay_between=60)
        async with served.http.post(PATH, json=self.ASKED) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: worker.hung_up == 1)
        await until(lambda: served.context.router.in_flight.total() == 0)

    async def test_whose_caller_hangs_up_is_given_up_over_two_hops(self, mesh, worker):
        worker.fail(delay_between=60)
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        async with mesh.two.http.post(PATH, json=self.ASKED) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: worker.hung_up == 1)
        await until(lambda: mesh.one.context.router.in_flight.total() == 0)


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n", b": c", b"y"])))
def test_however_a_stream_is_cut_its_bytes_go_on_in_order_and_events_go_on_whole(chunks):
    held = WholeEvents()
    sent = [held.take(chunk) for chunk in chunks]
    assert b"".join((*sent, held.rest)) == b"".join(chunks)
    assert all(not piece or piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in sent)


class TestAFailure:
    async def test_of_a_model_that_nobody_knows_is_404_and_names_what_is_near(self, served):
        status, body = await told(served.http.post(PATH, json=CHAT | {"model": "tinny"}))
        assert (status, body["code"], body["error"]["code"]) == (404, 1017, "model_not_found")
        assert "tiny" in body["message"]

    async def test_of_a_worker_that_is_gone_is_503_with_a_time_to_come_back(self, served):
        await served.register(OpenAIWorker(url="http://127.0.0.1:9"))
        async with served.http.post(PATH, json=CHAT) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert response.headers["x-modelvine-attempts"] == "1"
            assert response.headers["x-request-id"]

    async def test_of_the_worker_itself_is_502_and_not_its_words(self, served, worker):
        worker.fail(status=500, refusal=b"Traceback: secret")
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["code"]) == (502, 1007)
        assert "secret" not in str(body)

    async def test_that_the_worker_finds_in_the_request_is_told_in_its_words(self, served, worker):
        said = b'{"error": {"message": "context too long", "code": "ctx"}}'
        worker.fail(status=400, refusal=said)
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["message"], body["error"]["code"]) == (400, "context too long", "ctx")

    async def test_of_a_node_that_drains_sends_callers_elsewhere(self, served):
        await served.context.registry.stand(Standing.DRAINING)
        status, body = await told(served.http.post(PATH, json=CHAT))
        assert (status, body["code"]) == (503, 1017)


BAD_BODIES = {
    "empty": b"",
    "cut short": b'{"model": "tiny"',
    "not JSON": b"model=tiny",
    "an array": b"[]",
    "a string": b'"tiny"',
    "null": b"null",
    "no model": b'{"messages": []}',
    "empty model": b'{"model": ""}',
    "model that is a number": b'{"model": 5}',
    "model that is a list": b'{"model": ["tiny"]}',
    "model that is endless": b'{"model": "' + b"x" * 10_000 + b'"}',
    "stream that is text": b'{"model": "tiny", "stream": "yes"}',
    "project that is a number": b'{"model": "tiny", "project": 7}',
    "half a surrogate": b'{"model": "\\ud800"}',
    "bytes that are no text": b'{"model": "\xff\xfe"}',
    "deep nesting": b'{"model": ' + b"[" * 100_000,
    "byte order marks of UTF-16": '{"model": "tiny"}'.encode("utf-16"),
}


class TestWhatIsBad:
    @pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
    async def test_as_a_body_is_400_in_our_shape_and_leaves_no_traceback(
        self, served, worker, body, caplog
    ):
        headers = {"Content-Type": "application/json"}
        with caplog.at_level(logging.DEBUG):
            status, said = await told(served.http.post(PATH, data=body, headers=headers))
        assert status == 400
        assert said["code"] in (1001, 1002)
        assert said["error"]["message"] == said["message"]
        assert worker.received == []
        assert not [r for r in caplog.records if r.exc_info or "Traceback" in r.getMessage()]

    @pytest.mark.parametrize(
        "kind",
        ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "nonsense"],
    )
    async def test_as_a_content_type_is_415(self, served, kind):
        call = served.http.post(PATH, data=b"{}", headers={"Content-Type": kind})
        assert (await told(call))[0] == 415

    async def test_as_a_content_encoding_is_415(self, served):
        headers = {"Content-Type": "application/json", "Content-Encoding": "br"}
        assert (await told(served.http.post(PATH, data=b"{}", headers=headers)))[0] == 415

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    @pytest.mark.parametrize("body", [b"not packed", gzip.compress(b"{}")[:-9], b"\x78\x9c\xff"])
    async def test_as_packed_bytes_is_400(self, served, encoding, body, caplog):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        assert (await told(served.http.post(PATH, data=body, headers=headers)))[0] == 400
        assert not [record for record in caplog.records if record.exc_info]

    @pytest.mark.parametrize("prefix", [b"", b"--b\r\n", b"--b\r\nContent-Disposition: x\r\n\r\n"])
    async def test_as_a_form_is_400(self, served, prefix):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        call = served.http.post("/v1/images/edits", data=prefix, headers=headers)
        assert (await told(call))[0] == 400

    @pytest.mark.parametrize("name", ["x-modelvine-node", "x-modelvine-project"])
    async def test_as_a_pin_is_400(self, served, name):
        call = served.http.post(
            PATH, json=CHAT, headers={name: "\x85" if "project" in name else "x"}
        )
        assert (await told(call))[0] == 400

    @pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v2/chat/completions", "/%ff%00"])
    async def test_as_a_path_is_404(self, alone, path):
        status, body = await told(alone.http.get(path))
        assert (status, body["error"]["code"]) == (404, "unknown_path")

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
    async def test_as_a_method_is_405_and_names_the_right_one(self, alone, method):
        async with alone.http.request(method, PATH) as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["code"] == 1011

    async def test_as_an_expectation_is_417(self, alone):
        call = alone.http.post(PATH, json=CHAT, headers={"Expect": "miracles"})
        assert (await told(call))[0] == 417


async def _raw(served, sent: bytes) -> bytes:
    """Send bytes over a bare connection and return the answer to them."""
    host, port = served.context.listening.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            return head + await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
    ids=["TLS", "version", "length", "line", "header"],
)
async def test_bytes_that_are_no_request_are_answered_in_our_shape_without_a_traceback(
    alone, sent, caplog
):
    head, _, body = (await _raw(alone, sent)).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 400 ", head)
    assert b"Server: modelvine" in head
    assert orjson.loads(body)["error"]["code"] == "invalid_body"
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.WARNING]


async def test_a_body_whose_chunks_are_nonsense_is_400(served):
    sent = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"
    )
    head, _, body = (await _raw(served, sent)).partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert orjson.loads(body)["code"] == 1002


class TestALargeBody:
    @pytest.fixture
    async def small(self):
        settings = settings_of(max_body_bytes=10_000, idle_timeout=0.3)
        async with node(World(MemoryNet()), settings) as running:
            yield running

    async def test_is_413_whether_it_says_how_long_it_is_or_not(self, small):
        async def pieces():
            for _ in range(20):
                yield b"x" * 1_000

        headers = {"Content-Type": "application/json"}
        for body in (b"x" * 10_001, pieces()):
            status, said = await told(small.http.post(PATH, data=body, headers=headers))
            assert (status, said["error"]["code"]) == (413, "body_too_large")

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    async def test_is_413_when_only_unpacking_shows_it(self, small, encoding):
        pack = gzip.compress if encoding == "gzip" else zlib.compress
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        call = small.http.post(PATH, data=pack(b" " * 5_000_000), headers=headers)
        assert (await told(call))[0] == 413

    async def test_that_does_not_come_is_408(self, small):
        sent = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        head, _, body = (await _raw(small, sent)).partition(b"\r\n\r\n")
        assert b" 408 " in head
        assert orjson.loads(body)["code"] == 1005


async def test_one_line_is_logged_for_a_request_and_no_word_of_what_was_said(served, caplog):
    with caplog.at_level(logging.DEBUG):
        async with served.http.post(PATH, json=CHAT, headers={"x-request-id": "id-1"}) as response:
            await response.read()
        await until(lambda: any("id-1" in r.getMessage() for r in caplog.records))
    lines = [r.getMessage() for r in caplog.records if r.name == "modelvine.requests"]
    assert len(lines) == 1
    assert "model=tiny kind=chat/completions" in lines[0]
    assert "route=local attempts=1 status=200" in lines[0]
    assert "secret" not in caplog.text
    assert WORDS[0] not in caplog.text


async def test_requests_are_counted(served):
    async with served.http.post(PATH, json=CHAT) as response:
        await response.read()
    async with served.http.get("/metrics") as response:
        text = await response.text()
    assert 'modelvine_requests_total{kind="chat/completions",status="200"} 1.0' in text
    assert 'modelvine_attempts_total{dialect="openai_http",outcome="ok"} 1.0' in text
    assert "modelvine_requests_in_flight 0.0" in text


class TestTheUnmodifiedClient:
    @pytest.fixture
    async def client(self, served):
        url = f"http://{served.context.listening.http}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client

    async def test_chats(self, client):
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "".join(WORDS)

    async def test_streams(self, client):
        stream = await client.chat.completions.create(**CHAT, stream=True)
        said = [chunk.choices[0].delta.content async for chunk in stream]
        assert said == ["", *WORDS[1:]]

    async def test_sees_an_unknown_model_as_not_found(self, client):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**CHAT | {"model": "nothing"})
        assert caught.value.code == "model_not_found"

    async def test_sees_a_bad_request_as_one(self, client):
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="", messages=[])

    async def test_sees_a_stream_that_breaks_as_an_error(self, client, worker):
        worker.fail(die_after=2)
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="broke"):
            async for _ in stream:
                pass

    async def test_lists_the_models(self, client):
        models = await client.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        assert (await client.models.retrieve("p/tiny")).owned_by == "p"
