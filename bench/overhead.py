"""CPU cost of the router itself for a request, without a network, with one or many workers that answer at once.

    python -m bench.overhead
    python -m bench.overhead --profile

CPU time is the minimum of many short runs, as other load only adds to it. Function calls are counted by cProfile, and do not
depend on other load. Both are the difference between a long run and a short one.
"""

import argparse
import asyncio
import cProfile
import pstats
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import orjson

from registry.catalog import Catalog, Signed
from registry.records import PeerId, Record, Service, Version
from registry.task_group import BackgroundTasks
from router import policies
from router.answer import Answer, Route
from router.dispatch import Router
from router.openai import body as bodies
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.state.service_time import ServiceTime
from router.workers import Worker, Workers
from router.world import LoneWorld

SHORT, LONG = 500, 3_500
_JSON = "application/json"


async def _nothing() -> AsyncIterator[bytes]:
    for chunk in tuple[bytes]():
        yield chunk


class _AtOnce:
    """Dialect and answer in one, which costs almost nothing."""

    def answer(self, request: Request, candidate: Candidate) -> "_AtOnce":  # noqa: ARG002
        return self

    async def __aenter__(self) -> Answer:
        answer = Answer(200, _JSON, b"{}", _nothing(), Route.LOCAL, length=2)
        answer.service_time = ServiceTime(0.5)
        return answer

    async def __aexit__(self, *_: object) -> None:
        return

    async def alive(self, worker: Worker) -> bool:  # noqa: ARG002
        return True

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        return 0


def a_router(others: int = 0) -> Router:
    """Return a router with one worker, or with so many replicas of other nodes and no worker."""
    service = Service("demo", "llama", "1")
    workers = Workers.of([Worker(service, "http://127.0.0.1:1", "at_once")])
    nodes = [PeerId(f"n{number}") for number in range(others)]
    records = {node: Record(node, Version(1, 0), services=(service,)) for node in nodes}
    catalog = Catalog().merge(Signed(record, node.encode()) for node, record in records.items())
    settings = RouterSettings()
    return Router(
        LoneWorld(PeerId("own"), Workers() if others else workers, catalog),
        {"at_once": _AtOnce(), "peer": _AtOnce()},
        policies.load(settings.policy),
        settings,
        time.monotonic,
        random=random.random,
        tasks=BackgroundTasks(),
    )


def a_body(size: int) -> bytes:
    """Return a chat body of about so many bytes."""
    messages, remaining = [{"role": "system", "content": "You help."}], size - 150
    while remaining > 0:
        messages.append({"role": "user", "content": "How does it go on? "[: remaining + 1] * 10})
        remaining -= 220
    return orjson.dumps({"model": "llama", "messages": messages, "stream": True, "max_tokens": 64})


def answering(times: int, others: int = 0) -> None:
    """Answer so many requests, one after another, with one worker or with replicas of so many other nodes."""
    router = a_router(others)
    body = a_body(2_000)

    async def ask() -> None:
        for _ in range(times):
            async with router.answer(Request("r-1", Kind.CHAT, "llama", body, _JSON)):
                pass

    asyncio.run(ask())


def reading(times: int) -> None:
    """Parse so many bodies of 2 KB."""
    body = a_body(2_000)
    for _ in range(times):
        bodies.read(body, _JSON)


PARTS: dict[str, Callable[[int], None]] = {
    "answer": answering,
    "answer, 10 replicas": partial(answering, others=10),
    "answer, 100 replicas": partial(answering, others=100),
    "answer, 1,000 replicas": partial(answering, others=1_000),
    "read": reading,
}


def microseconds(part: Callable[[int], None], runs: int) -> float:
    """Return the least CPU time of one request, in microseconds."""

    def once(times: int) -> float:
        began = time.process_time()
        part(times)
        return time.process_time() - began

    long, short = (min(once(times) for _ in range(runs)) for times in (LONG, SHORT))
    return 1e6 * (long - short) / (LONG - SHORT)


def calls(part: Callable[[int], None]) -> float:
    """Return the number of function calls of one request, including C functions."""

    def once(times: int) -> int:
        with cProfile.Profile() as profile:
            part(times)
        return sum(entry.callcount for entry in profile.getstats())

    return (once(LONG) - once(SHORT)) / (LONG - SHORT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cost of one request."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=40, help="of which the best counts")
    parser.add_argument("--profile", action="store_true", help="show which functions are called")
    options = parser.parse_args(arguments)
    if options.profile:
        with cProfile.Profile() as profile:
            answering(LONG)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return 0
    for name, part in PARTS.items():
        print(f"{name}: {microseconds(part, options.runs):.1f} µs, {calls(part):.0f} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
