"""Laws of the engine: what each answer means for a line, and how a batch comes to its end."""

import asyncio
from codecs import BOM_UTF8
from contextlib import asynccontextmanager
from functools import partial

import orjson
import pytest
from aiohttp import web

from node.provide.asker import NodeAnswer
from node.provide.batch import engine as engines
from node.provide.batch.engine import MOST_ATTEMPTS, BatchEngine, judge
from node.provide.batch.store import BatchStore, OpenLine
from node.provide.database import SqliteDatabase
from node.provide.files import Files
from tests.node.faces.assembly import until
from tests.workers.serving import served

CHAT = "/v1/chat/completions"


def line(attempts=0):
    return OpenLine("b", CHAT, 1, "a", b"{}", attempts)


def row_of(verdict):
    return orjson.loads(verdict.result)


@pytest.mark.parametrize("status", [0, 408, 425, 429, 503])
def test_a_model_that_is_busy_or_away_is_asked_again_and_it_costs_no_attempt(status):
    for attempts in (0, MOST_ATTEMPTS, 1_000):
        verdict = judge(line(attempts), NodeAnswer(status))
        assert not verdict.result
        assert not verdict.counts
        assert 1 <= verdict.pause <= engines.LONGEST_PAUSE
    assert judge(line(), NodeAnswer(status, after="7")).pause == 7
    assert judge(line(), NodeAnswer(status, after="99999")).pause == engines.LONGEST_PAUSE


@pytest.mark.parametrize("status", [404, 500, 502, 504])
def test_a_failure_is_tried_again_a_few_times_with_growing_pauses(status):
    pauses = []
    for attempts in range(MOST_ATTEMPTS - 1):
        verdict = judge(line(attempts), NodeAnswer(status, b'{"error":{}}'))
        assert verdict.counts
        pauses.append(verdict.pause)
    assert pauses == sorted({*pauses})
    last = judge(line(MOST_ATTEMPTS - 1), NodeAnswer(status, b'{"error":{}}'))
    assert row_of(last)["response"]["status_code"] == status
    assert not last.ok


def test_a_success_and_a_refusal_of_the_request_are_results():
    good = judge(line(), NodeAnswer(200, b'{"choices":[]}', "r"))
    assert good.ok
    assert row_of(good)["response"] == {
        "status_code": 200,
        "request_id": "r",
        "body": {"choices": []},
    }
    bad = judge(line(), NodeAnswer(400, b'{"error":{"message":"no"}}'))
    assert not bad.ok
    assert row_of(bad)["response"]["body"]["error"]["message"] == "no"


def test_an_answer_that_is_no_json_object_is_no_success():
    deep = b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"
    assert judge(line(), NodeAnswer(200, deep)).counts
    for body in (b"", b"<html>", b"[1]", deep):
        verdict = judge(line(MOST_ATTEMPTS), NodeAnswer(200, body))
        assert verdict.result
        assert not verdict.ok


class Clock:
    """A clock that a test moves."""

    now = 1_000.0

    def __call__(self):
        return self.now


class StandIn:
    """Stand-in for the node that answers by the model that a line names."""

    def __init__(self):
        self.asked = []
        self.says = {}
        self.holds = None
        self.slots = 0
        self.sessions = []

    async def route(self, http):
        return web.json_response({"candidates": [{"load": {"slots": self.slots}}], "excluded": []})

    async def chat(self, http):
        assert http.headers["x-modelvine-priority"] == "background"
        self.sessions.append(http.headers.get("x-modelvine-session", ""))
        model = (await http.json())["model"]
        self.asked.append(model)
        if self.holds:
            await self.holds.wait()
        statuses = self.says.get(model, [200])
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        return web.json_response({"model": model}, status=status)


@pytest.fixture
async def node():
    stand_in = StandIn()
    app = web.Application()
    app.router.add_post(CHAT, stand_in.chat)
    app.router.add_get("/api/v1/route", stand_in.route)
    async with served(app) as stand_in.url:
        yield stand_in


@asynccontextmanager
async def working(tmp_path, node, *models, clock=None, content=None):
    """Run an engine with one batch that has a line for each model."""
    rows = [
        orjson.dumps({"custom_id": str(n), "method": "POST", "url": CHAT, "body": {"model": model}})
        for n, model in enumerate(models)
    ]
    (tmp_path / "f").write_bytes(b"\n".join(rows) if content is None else content)
    store, clock = BatchStore(SqliteDatabase(tmp_path / "b.db")), clock or Clock()
    files = Files(tmp_path, store.files)
    engine = BatchEngine(files, store, node=node.url, concurrency=3, wall=clock)
    fields = {"input_file_id": "f", "endpoint": CHAT, "output_file_id": None, "error_file_id": None}
    store.add_batch("batch_1", 1_000, 5_000, fields)
    try:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(engine.run())
            yield engine
            work.cancel()
    finally:
        files.close()
        store.close()


def rows(engine, field):
    name = engine.store.batch("batch_1")[field]
    return (
        [orjson.loads(row) for row in (engine.files.path(name)).read_bytes().splitlines()]
        if name
        else []
    )


async def over(engine, status):
    await until(lambda: engine.store.batch("batch_1")["status"] == status)


async def test_all_lines_are_asked_and_their_results_are_in_two_files(tmp_path, node):
    node.says = {"bad": [400]}
    async with working(tmp_path, node, "x", "bad", "y", "x") as engine:
        await over(engine, "completed")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["0", "2", "3"]
        assert [row["custom_id"] for row in rows(engine, "error_file_id")] == ["1"]
    assert len(node.asked) == 4
    assert not list(tmp_path.glob("*.part"))


async def test_a_busy_model_is_asked_again_when_the_line_is_due(tmp_path, node):
    node.says = {"busy": [429, 503, 200]}
    clock = Clock()
    async with working(tmp_path, node, "busy", clock=clock) as engine:
        for times in (1, 2):
            await until(lambda times=times: len(node.asked) == times)
            await until(lambda: not engine._running)
            clock.now += 60
        await over(engine, "completed")
        assert len(rows(engine, "output_file_id")) == 1


async def test_an_error_that_nothing_foresaw_is_the_result_of_its_line_and_the_other_lines_go_on(
    tmp_path, node, monkeypatch, caplog
):
    answer_to = engines.answer_to

    async def breaking(asker, line, session):
        if line.custom_id == "1":
            raise ZeroDivisionError(line.body)
        return await answer_to(asker, line, session)

    monkeypatch.setattr(engines, "answer_to", breaking)
    async with working(tmp_path, node, "x", "secret", "y") as engine:
        await over(engine, "completed")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["0", "2"]
        (row,) = rows(engine, "error_file_id")
        assert (row["custom_id"], row["error"]["code"]) == ("1", "internal_error")
    assert "ZeroDivisionError at" in caplog.text
    assert "secret" not in caplog.text


def lines_with(system, count):
    return b"".join(
        orjson.dumps(
            {
                "custom_id": f"{system[0]}{n}",
                "method": "POST",
                "url": CHAT,
                "body": {"model": "x", "messages": [{"role": "system", "content": system}, n]},
            }
        )
        + b"\n"
        for n in range(count)
    )


@pytest.mark.parametrize(("size", "at_one_time"), [(2_000, 2), (20, 3)])
async def test_as_many_lines_with_a_long_common_beginning_are_in_flight_as_there_are_slots(
    tmp_path, node, size, at_one_time
):
    node.slots, node.holds = 2, asyncio.Event()
    content = b"".join(lines_with(name * size, 3) for name in "abcd")
    async with working(tmp_path, node, content=content) as engine:
        await until(lambda: len(node.asked) == at_one_time)
        await until(lambda: not engine._wake.is_set())
        assert len(engine._running) == at_one_time
        node.holds.set()
        await over(engine, "completed")
    assert len(node.asked) == 12
    # The last line of a beginning has no session, unless the line before it is still in flight.
    sessions = [session for session in node.sessions if session]
    assert len(sessions) in ((8, 9) if at_one_time == 2 else (0,))
    assert len({*sessions}) == (4 if at_one_time == 2 else 0)


async def test_the_open_lines_of_a_cancelled_batch_end_in_an_error(tmp_path, node):
    async with working(tmp_path, node, *["x"] * 2) as engine:
        node.holds = asyncio.Event()
        await until(lambda: len(node.asked) == 2)
        await engine.files.run_in_thread(partial(engine.store.cancel, "batch_1", 1_001))
        engine.wake()
        await over(engine, "cancelled")
        assert {row["error"]["code"] for row in rows(engine, "error_file_id")} == {
            "batch_cancelled"
        }
        node.holds.set()


async def test_a_cancelled_batch_keeps_the_results_that_it_has(tmp_path, node):
    node.says = {"never": [429]}
    async with working(tmp_path, node, "x", "never") as engine:
        await until(lambda: engine.store.batch("batch_1")["request_counts"]["completed"] == 1)
        await engine.files.run_in_thread(partial(engine.store.cancel, "batch_1", 1_001))
        engine.wake()
        await over(engine, "cancelled")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["0"]
        [left] = rows(engine, "error_file_id")
        assert (left["custom_id"], left["error"]["code"]) == ("1", "batch_cancelled")


async def test_a_batch_expires_with_the_results_that_it_has(tmp_path, node):
    node.says = {"never": [429]}
    clock = Clock()
    async with working(tmp_path, node, "x", "never", clock=clock) as engine:
        await until(lambda: len(node.asked) >= 2)
        clock.now = 5_000
        await over(engine, "expired")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["0"]
        assert [row["error"]["code"] for row in rows(engine, "error_file_id")] == ["batch_expired"]


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "empty_file"), (b"\n \n", "empty_file"), (b"{}\n" * 4, "too_many_tasks")],
)
async def test_a_file_that_is_no_batch_fails_with_a_reason(
    tmp_path, node, monkeypatch, content, code
):
    monkeypatch.setattr(engines, "MAX_LINES", 3)
    async with working(tmp_path, node, content=content) as engine:
        await over(engine, "failed")
        assert engine.store.batch("batch_1")["errors"]["data"][0]["code"] == code
    assert not node.asked


async def test_a_file_may_begin_with_a_byte_order_mark(tmp_path, node):
    line = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "x"}})
    async with working(tmp_path, node, content=BOM_UTF8 + line) as engine:
        await over(engine, "completed")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["a"]


async def test_a_line_that_is_too_long_is_an_error_and_the_other_lines_are_answered(
    tmp_path, node, monkeypatch
):
    monkeypatch.setattr(engines, "MAX_LINE_BYTES", 300)
    monkeypatch.setattr(engines.lines, "MAX_LINE_BYTES", 300)
    monkeypatch.setattr(engines, "CHUNK_BYTES", 100)
    good = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "x"}})
    content = b"\n".join((b"y" * 2_000, good, b"z" * 301, good.replace(b'"a"', b'"b"')))
    async with working(tmp_path, node, content=content) as engine:
        await over(engine, "completed")
        assert [row["custom_id"] for row in rows(engine, "output_file_id")] == ["a", "b"]
        codes = [row["error"]["code"] for row in rows(engine, "error_file_id")]
        assert codes == ["line_too_long"] * 2
