"""What is written of a request: one line and its metrics, however it ends."""

import asyncio
import logging

import pytest

from node.faces.accounts import CALLER_LEFT, accounting
from router.errors import UnknownModel
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
async def test_a_request_that_fails_is_booked_with_its_status(served, lines, error, status):
    def fail():
        with accounting(served.context, "r", Kind.CHAT) as account:
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

    with accounting(served.context, "r", Kind.CHAT) as account:
        assert await in_flight()
        account.status = 200
    assert not await in_flight()
