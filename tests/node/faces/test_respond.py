"""How answers reach callers: streams flow, break off visibly, stop when the caller leaves, and are counted once."""

import asyncio
import logging

import orjson
import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of, until
from tests.workers.openai_worker import WORDS
from tests.workers.raw import endless, raw

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}
PATH = "/v1/chat/completions"


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

    async def test_whose_caller_hangs_up_is_cancelled_at_the_worker(self, served, worker):
        worker.fail(delay_between=60)
        async with served.http.post(PATH, json=self.ASKED) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: worker.hung_up == 1)
        await until(lambda: served.context.router.in_flight.total() == 0)

    async def test_whose_caller_hangs_up_is_cancelled_over_two_nodes(self, mesh, worker):
        worker.fail(delay_between=60)
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        async with mesh.two.http.post(PATH, json=self.ASKED) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: worker.hung_up == 1)
        await until(lambda: mesh.one.context.router.in_flight.total() == 0)


async def test_one_line_is_logged_for_a_request_and_no_text_of_it(served, caplog):
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


class TestTokens:
    ASKED = CHAT | {"stream": True}

    async def counted(self, running):
        async with running.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return {
            line.partition("{")[2].partition("}")[0]: float(line.split()[-1])
            for line in lines
            if line.startswith("modelvine_tokens_total{")
        }

    async def test_of_a_stream_are_counted_and_hidden_from_a_caller_that_did_not_ask(
        self, served, worker, caplog
    ):
        with caplog.at_level(logging.INFO):
            async with served.http.post(PATH, json=self.ASKED) as response:
                assert await response.read() == b"".join(worker.events("tiny"))
        await until(lambda: "tokens=5+6" in caplog.text)
        assert await self.counted(served) == {
            'estimated="no",model="tiny",part="completion"': 6,
            'estimated="no",model="tiny",part="prompt"': 5,
        }

    async def test_are_shown_to_a_caller_that_asked(self, served, worker):
        fields = self.ASKED | {"stream_options": {"include_usage": True}}
        async with served.http.post(PATH, json=fields) as response:
            assert await response.read() == b"".join(worker.events("tiny", usage=True))
        assert (await self.counted(served))['estimated="no",model="tiny",part="completion"'] == 6

    @pytest.mark.parametrize("asks", [False, True])
    async def test_are_counted_once_by_the_node_whose_worker_used_them(self, mesh, worker, asks):
        await mesh.one.register(worker)
        await mesh.knows(mesh.two, "tiny")
        options = {"stream_options": {"include_usage": True}} if asks else {}
        async with mesh.two.http.post(PATH, json=self.ASKED | options) as response:
            assert await response.read() == b"".join(worker.events("tiny", usage=asks))
        assert (await self.counted(mesh.one))['estimated="no",model="tiny",part="prompt"'] == 5
        assert await self.counted(mesh.two) == {}

    async def test_of_a_stream_that_its_caller_left_early_are_estimated(self, served, worker):
        worker.fail(delay_between=0.02, stall_after=5)
        async with served.http.post(PATH, json=self.ASKED) as response:
            for _ in range(6):
                await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: worker.hung_up == 1)
        await until(lambda: served.context.router.in_flight.total() == 0)
        # The first event names the role; four words followed.
        assert await self.counted(served) == {'estimated="yes",model="tiny",part="completion"': 4}

    @pytest.mark.parametrize("continues", ["0", "1"])
    async def test_of_a_stream_in_one_piece_are_estimated_as_of_one_in_many(
        self, alone, worker, continues
    ):
        events = worker.events("tiny")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        async with raw(endless(head + b"".join(events))) as url:
            await alone.register(worker, api=f"{url}/v1/chat/completions")
            headers = {"x-modelvine-continue": continues}
            async with alone.http.post(PATH, json=self.ASKED, headers=headers) as response:
                assert await response.read() == b"".join(events)
        counted = await self.counted(alone)
        assert counted == {'estimated="yes",model="tiny",part="completion"': len(events) - 1}

    async def test_of_whole_answers_are_counted_too(self, served):
        async with served.http.post("/v1/embeddings", json={"model": "tiny"}) as response:
            await response.read()
        assert (await self.counted(served))['estimated="no",model="tiny",part="prompt"'] == 1


async def test_a_caller_that_stops_reading_does_not_hold_the_worker(worker):
    worker.fail(pad_bytes=40_000_000)
    settings = settings_of(stall_timeout=0.3)
    async with node(World(MemoryNet()), settings) as running:
        await running.register(worker)
        busy = running.context.router.in_flight
        host, port = running.context.listening.http.split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = orjson.dumps(CHAT)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: busy.total() == 1)
        await until(lambda: busy.total() == 0)
        writer.transport.abort()
