"""Records of a request: one log line and its metrics, however it ends."""

import asyncio
import logging
import re
import tracemalloc
from dataclasses import replace

import pytest

from node.faces.access_log import CALLER_LEFT, Account, conclude, open_account
from node.observe import genai
from node.observe.measurements import Measurements
from node.observe.metrics import Metrics
from router.errors import UnknownModel
from router.openai.usage import Usage
from router.requests import Kind


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "modelvine.requests")
    return lambda: [record.getMessage() for record in caplog.records]


def status_of(line: str) -> int:
    return int(line.split(" status=")[1].split(maxsplit=1)[0])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownModel("none"), 404),
        (asyncio.CancelledError(), CALLER_LEFT),
        (ConnectionResetError(), CALLER_LEFT),
        (ZeroDivisionError(), 500),
    ],
)
async def test_a_request_that_fails_is_logged_with_its_status(served, lines, error, status):
    def fail():
        with open_account(served.context, "r", Kind.CHAT) as account:
            account.model = "tiny"
            raise error

    with pytest.raises(type(error)):
        fail()
    [line] = lines()
    assert (status_of(line), "model=tiny" in line) == (status, True)


async def test_requests_in_flight_are_counted(served):
    async def in_flight():
        async with served.http.get("/metrics") as response:
            return "modelvine_requests_in_flight 1.0" in await response.text()

    with open_account(served.context, "r", Kind.CHAT) as account:
        assert await in_flight()
        account.status = 200
    assert not await in_flight()


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("tiny", "model=tiny kind="),
        ("größe/7b:q4", "model=größe/7b:q4 kind="),
        ("tiny status=200 seconds=0.1", 'model="tiny status=200 seconds=0.1" kind='),
        ('tiny" status="200', 'model="tiny\\" status=\\"200" kind='),
        ("tiny\nrequest=forged", 'model="tiny\\nrequest=forged" kind='),
        ("tiny\u2003status=200", 'model="tiny\\u2003status=200" kind='),
        ("a\\nb", 'model="a\\\\nb" kind='),
        ("x" * 10_000, f'model="{"x" * 256}\\u2026 (10000 characters)" kind='),
    ],
)
async def test_a_model_name_made_up_by_a_caller_stays_one_field_of_the_line(
    served, lines, model, shown
):
    with open_account(served.context, "r", Kind.CHAT) as account:
        account.model = model
        account.status = 404
    [line] = lines()
    assert shown in line
    assert len(re.findall(r" status=404 ", line)) == 1
    assert line.isprintable()


async def test_long_model_names_are_not_kept_in_memory(served, lines):
    tracemalloc.start()
    try:
        for number in range(50):
            account = Account(f"r-{number}", Kind.CHAT, 0.0)
            account.model = f"{number}" + "x" * 1_000_000
            conclude(served.context, account)
        served.context.metrics.recent.ended.clear()
        del account
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()
    assert len(lines()) == 50


def test_an_account_stays_small_when_it_ends():
    """Many are in flight at one time: none may turn its fields into a dictionary of its own."""
    tracemalloc.start()
    try:
        accounts = [Account("r", Kind.CHAT, 0.0) for _ in range(1_000)]
        for account in accounts:
            account.model, account.status, account.candidate = "tiny", 502, None
            account.reported_usage = account.usage = account.used = None
            account.parts, account.error, account.failure, account.seconds = (), "E", "why", 1.0
        assert tracemalloc.get_traced_memory()[0] < 500 * len(accounts)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("used", "status", "streams", "times"),
    [
        (Usage(7, 5), 200, True, [0.5]),
        (Usage(7, 1), 200, True, []),
        (Usage(0, 5, estimated=True), 200, True, []),
        (Usage(7, 5), 502, True, []),
        (Usage(7, 5), 200, False, []),
        (None, 200, True, []),
    ],
)
async def test_time_per_token_is_measured_for_streams_that_report_their_usage(
    served, used, status, streams, times
):
    metrics = Metrics(Measurements())
    account = Account("r", Kind.CHAT, 0.0)
    account.first_byte_seconds, account.status = 1.0, status
    account.streams_text, account.reported_usage = streams, used
    conclude(replace(served.context, metrics=metrics, now=lambda: 3.0), account)
    found = [row for row in metrics.counts().token_time if sum(row.counts)]
    measured = [r for r in metrics.measurements.rows() if r.instrument == genai.TIME_PER_OUTPUT]
    for rows in (found, measured):
        assert [row.total for row in rows] == times
