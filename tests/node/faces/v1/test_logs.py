"""`/api/v1/logs`: the last lines of a node's log, by severity and time, for operators alone."""

import io
import logging
from collections.abc import Iterator

import pytest

from node.auth.keys import Allowance
from node.observe import logs
from tests.node.faces.assembly import TOKEN

LOGS = "/api/v1/logs"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(form="console", level="info", stream=io.StringIO())
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def lines(running, **query):
    async with running.http.get(LOGS, params=query, headers=BEARER) as response:
        assert response.status == 200
        return (await response.json())["logs"]


async def test_lines_are_selected_by_severity_time_and_number(alone):
    log = logging.getLogger("modelvine.test")
    log.info("one")
    log.warning("two\n%s", "\x1b[2J")
    log.error("three")
    found = [line for line in await lines(alone) if line["logger"] == "modelvine.test"]
    assert [(line["level"], line["message"]) for line in found] == [
        ("info", "one"),
        ("warning", "two\\n\\x1b[2J"),
        ("error", "three"),
    ]
    assert [line["message"] for line in await lines(alone, level="error")] == ["three"]
    assert [line["message"] for line in await lines(alone, number="1")] == ["three"]
    since = str(found[-1]["time"] + 0.001)
    assert "three" not in [line["message"] for line in await lines(alone, since=since)]


async def test_logs_are_for_operators(alone):
    made = await alone.context.keys.create({"v": Allowance(role="viewer"), "u": Allowance()})
    for secret in made.values():
        headers = {"Authorization": f"Bearer {secret}"}
        async with alone.http.get(LOGS, headers=headers) as response:
            assert response.status == 403
    far = {"X-Forwarded-For": "203.0.113.9"}
    async with alone.http.get(LOGS, headers=far) as response:
        assert response.status == 403


@pytest.mark.parametrize("query", [{"level": "loud"}, {"since": "yesterday"}, {"since": "nan"}])
async def test_an_invalid_query_is_refused(alone, query):
    async with alone.http.get(LOGS, params=query, headers=BEARER) as response:
        assert response.status == 400
