"""One provider of batches, from its start to its end: folder, key, server, registration, engine."""

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import uvloop
from aiohttp import web

from node.cli.console.client import Client
from node.config.addresses import HostPort
from node.errors import CommandFailed
from node.provide.engine import KEEP, Engine
from node.provide.face import application
from node.provide.store import BatchStore

log = logging.getLogger("modelvine.provide")

BATCH_TYPE = 9
"""`registry.records.ModelType.BATCH`."""

_KEY, _LOCK, _DATABASE, _FILES = "key", "lock", "batches.db", "files"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is provided, where, and by which name it is registered at which node."""

    folder: Path
    place: HostPort
    project: str
    name: str
    concurrency: int
    keep: int = KEEP


def run(plan: Plan, node: Client, ready: Callable[[str], None]) -> int:
    """Provide batches until a signal comes; raise `CommandFailed`."""
    folder = plan.folder / _FILES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan.folder.chmod(0o700)
        with _locked(plan.folder):
            for part in folder.glob("*.part"):
                part.unlink()
            store = BatchStore(plan.folder / _DATABASE)
            uvloop.run(_serve(plan, node, store, ready))
    except OSError as error:
        raise CommandFailed(f"{error.filename or plan.folder}: {error.strerror}") from error
    return 0


async def _serve(plan: Plan, node: Client, store: BatchStore, ready: Callable[[str], None]) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    engine = Engine(
        plan.folder / _FILES,
        store,
        node=node.target.url.rstrip("/"),
        concurrency=plan.concurrency,
        now=time.time,
        keep=plan.keep,
    )
    key = _key(plan.folder / _KEY)
    runner = web.AppRunner(application(engine, key, time.time), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, plan.place.host, plan.place.port).start()
        host, port = runner.addresses[0][:2]
        api = f"http://{HostPort(host, port)}"
        await asyncio.to_thread(node.post, "/api/v0/ai/model/register", registration(plan, api))
        ready(f"ready batch={api} registered={plan.project}/{plan.name} node={node.target.url}")
        async with asyncio.TaskGroup() as group:
            working = group.create_task(engine.run())
            await over.wait()
            working.cancel()
        gone = {"project": plan.project, "model": plan.name, "cid": ""}
        await asyncio.to_thread(node.post, "/api/v0/ai/model/unregister", gone)
    finally:
        await runner.cleanup()
        engine.close()


def registration(plan: Plan, api: str) -> Mapping[str, object]:
    """Return what the node is told: the key stays in its file."""
    header = f"Bearer @{(plan.folder / _KEY).resolve()}"
    return {
        "project": plan.project,
        "model": plan.name,
        "api": api,
        "type": BATCH_TYPE,
        "headers": {"authorization": header},
    }


def _key(path: Path) -> str:
    """Return the key of this folder, made when it is first needed."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()


class _locked:  # noqa: N801 (used as a function)
    """The folder is this process's alone; raise `CommandFailed` where it is another's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise CommandFailed(f"{self._path.parent} is in use by another provider") from error

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
