"""The LocalAI dialect against a backend of generated code, old and newer, in a process of its own with threads."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from registry.records import Service
from router.dialects.localai_grpc import create
from router.errors import WorkerFailed
from router.requests import Kind
from router.select.candidates import Candidate
from tests.router.world import chat, links, own, until, whole
from tests.workers import generated_localai

PROGRAM = generated_localai.__file__


Started = tuple[Candidate, str, asyncio.subprocess.Process]


@pytest.fixture(params=["old", "newer"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Started]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        PROGRAM,
        str(tmp_path),
        request.param,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        candidate = own(f"grpc://127.0.0.1:{port}")
        assert candidate.worker is not None
        load = '{"Model":"tiny","FlashAttention":true}'
        yield (
            replace(candidate, worker=replace(candidate.worker, load=load)),
            request.param,
            process,
        )
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)


async def test_an_old_backend_and_a_newer_one_understand_the_dialect(
    backend: Started,
) -> None:
    candidate, age, _ = backend
    flash = "on" if age == "newer" else "True"
    async with links() as own_links:
        dialect = create(own_links)
        # The backend's template raises an exception, so the node's is used.
        async with dialect.answer(chat(), candidate) as answer:
            payload = orjson.loads(await whole(answer))
        assert payload["choices"][0]["message"]["content"] == f"tiny, flash attention {flash}"
        assert candidate.worker is not None
        assert await dialect.alive(candidate.worker)


class Slots:
    """Slots that signal the release of one."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    def release(self, _: Service) -> None:
        self.released.set()


async def test_a_backend_whose_caller_left_is_free_once_it_reports_healthy(
    backend: Started,
) -> None:
    candidate, _, _ = backend
    slots = Slots()
    async with links() as own_links:
        dialect = create(own_links)
        async with dialect.answer(chat(stream=True), candidate) as answer:
            assert answer.first
        assert own_links.lingering.keep_slot(candidate.service, slots)
        await asyncio.wait_for(slots.released.wait(), 10)


async def test_an_exception_of_the_backend_is_reported(backend: Started) -> None:
    candidate, _, _ = backend
    assert candidate.worker is not None
    unloaded = replace(candidate, worker=replace(candidate.worker, load=""))
    async with links() as own_links:
        with pytest.raises(WorkerFailed) as failed:
            async with create(own_links).answer(chat(), unloaded):
                pass
    assert "UNKNOWN: Exception calling application: " in str(failed.value)
    assert "has no attribute 'tokenizer'" in str(failed.value)


async def test_a_backend_at_work_is_alive_and_a_frozen_one_is_not(
    backend: Started, tmp_path: Path
) -> None:
    candidate, _, process = backend
    worker = candidate.worker
    assert worker is not None
    body = b'{"model":"llama","prompt":"wait"}'

    async with links() as own_links:
        dialect = create(own_links)

        async def ask() -> None:
            async with dialect.answer(chat(kind=Kind.COMPLETION, body=body), candidate):
                pass

        asking = asyncio.ensure_future(ask())
        await until((tmp_path / "begun").exists)
        assert await dialect.alive(worker)
        process.send_signal(signal.SIGSTOP)
        try:
            # SIGSTOP stops one thread after the other.
            async with asyncio.timeout(10):
                while await dialect.alive(worker):
                    pass
        finally:
            process.send_signal(signal.SIGCONT)
        asking.cancel()
        await asyncio.wait([asking])
