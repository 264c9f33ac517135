"""Laws of refusals: what the status and the headers of a worker's refusal mean."""

import asyncio

import pytest

from router import dialects
from router.errors import WorkerFailed
from router.http.refusals import retry_after
from tests.router.world import chat, links, own
from tests.workers.raw import raw, take


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("99999999", 3600.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sat, 99 Nov 2026 12:00:30 GMT", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(said: str, seconds: float | None) -> None:
    assert retry_after(said, 1795262400.0) == seconds


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (300, "the worker answered with status 300"),
        (304, "the worker answered 304, not modified, to a request without a condition"),
        (305, "the worker answered with status 305"),
    ],
)
@pytest.mark.parametrize("name", ["openai_http", "tgi_http"])
async def test_a_status_that_leads_nowhere_is_not_called_a_redirect(
    name: str, status: int, message: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)

    async with links() as own_links, raw(serve) as url:
        dialect = dialects.load(name)(own_links)
        with pytest.raises(WorkerFailed) as failed:
            await dialect.answer(chat(), own(url, dialect=name)).__aenter__()
    assert str(failed.value) == message
