"""Laws of recognising the worker at an address: the order of the dialects, the end of the search, and its report."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from registry.records import Service
from router.dialects import Dialect, Recognition, explain_silence, recognise, recognition_order
from router.dialects.openai_http import create
from router.errors import WorkerFailed
from router.worker_description import WorkerDescription
from router.workers import Worker
from tests.certificates import write
from tests.router.world import links
from tests.workers.raw import raw

WORKER = Worker(Service("p", "m"), "http://w")
KNOWN = Recognition("x", "200", WorkerDescription())


class Looks:
    """A dialect that returns the given recognition."""

    def __init__(self, recognition: Recognition) -> None:
        self._sighting = recognition

    async def recognise(self, worker: Worker) -> Recognition:
        assert worker is WORKER
        return self._sighting


class Lacking(dict[str, object]):
    """Dialects of which one needs a package that is not installed."""

    def __getitem__(self, name: str) -> object:
        if name == "lacking":
            raise WorkerFailed("needs grpc")
        return super().__getitem__(name)


async def seen(*names: str, **found: object) -> list[tuple[str, str, bool]]:
    dialects = cast("Mapping[str, Dialect]", Lacking(found))
    candidates = [(name, WORKER) for name in names]
    return [(n, s.came, s.said is not None) for n, s in await recognise(dialects, candidates)]


async def test_dialects_look_in_turn_until_one_recognises_the_worker() -> None:
    no = Looks(Recognition("x", "404"))
    assert await seen("a", "b", "c", a=no, b=Looks(KNOWN), c=no) == [
        ("a", "404", False),
        ("b", "200", True),
    ]


async def test_the_search_ends_at_a_worker_that_is_loading_its_model() -> None:
    loads, no = Looks(Recognition("x", "503", waits=True)), Looks(Recognition("x", "404"))
    assert [name for name, _, _ in await seen("a", "b", a=loads, b=no)] == ["a"]


async def test_the_search_goes_on_after_silence_as_another_protocol_may_be_spoken() -> None:
    silent = Looks(Recognition("x", "no answer within 1 s", silent=True))
    assert [name for name, _, _ in await seen("a", "b", a=silent, b=Looks(KNOWN))] == ["a", "b"]


async def test_a_dialect_that_cannot_look_is_skipped_or_reports_what_it_lacks() -> None:
    assert await seen("mute", "lacking", "b", mute=object(), b=Looks(KNOWN)) == [
        ("lacking", "needs grpc", False),
        ("b", "200", True),
    ]


def test_tgi_looks_before_openai_and_unknown_dialects_look_last() -> None:
    names = ["a_new_one", "openai_http", "peer", "tgi_http"]
    assert recognition_order(names) == ["tgi_http", "openai_http", "a_new_one"]


async def test_the_reason_why_a_worker_does_not_answer_names_the_remedy(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write(tmp_path))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n")

    async with links() as own_links, raw(serve, context) as secured, raw(serve) as plain:
        spoken = {"openai_http": create(own_links)}
        reasons = {
            secured.replace(
                "http:", "https:"
            ): "its TLS certificate is not trusted; start the node "
            "with SSL_CERT_FILE=/path/to/ca.pem",
            plain.replace("http:", "https:"): "it does not speak TLS; use http://",
            "http://127.0.0.1:1": "nothing listens there",
        }
        for url, reason in reasons.items():
            worker = Worker(Service("p", "m"), url)
            assert await explain_silence(spoken, worker) == reason
