"""Life of one provider: folder, key, server, registrations, work."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import uvloop
from aiohttp import web

from node.cli.console.client import Client
from node.config.addresses import HostPort
from node.errors import CommandFailed
from node.provide.database import DatabaseError
from node.provide.face import application
from node.provide.plan import Provider, ProviderPlan
from node.runtime import ending_signals, hold_file_lock

EXTRAS = {"apsw": "vectors", "sqlite_vec": "vectors", "psycopg": "postgres"}
"""Extras that bring the modules that only some providers need."""

_KEY, _LOCK = "key", "lock"


def run(
    plan: ProviderPlan,
    make: Callable[[ProviderPlan, str], Provider],
    node: Client,
    ready: Callable[[str], None],
) -> int:
    """Run a provider until a signal arrives; raise `CommandFailed`."""
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        plan.folder.chmod(0o700)
        with hold_file_lock(plan.folder / _LOCK, f"{plan.folder} is in use by another provider"):
            provider = _made(plan, make, node)
            try:
                uvloop.run(_serve(plan, provider, node, ready))
            finally:
                provider.close()
    except OSError as error:
        raise CommandFailed(f"{error.filename or plan.folder}: {error.strerror}") from error
    return 0


def _made(
    plan: ProviderPlan, make: Callable[[ProviderPlan, str], Provider], node: Client
) -> Provider:
    try:
        return make(plan, node.target.url.rstrip("/"))
    except DatabaseError as error:
        raise CommandFailed(str(error)) from error
    except ModuleNotFoundError as missing:
        if missing.name not in EXTRAS:
            raise
        raise CommandFailed(
            f'this needs an extra: make extras, or pip install "modelvine[{EXTRAS[missing.name]}]"'
        ) from missing


async def _serve(
    plan: ProviderPlan, provider: Provider, node: Client, ready: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    key = _key(plan.folder / _KEY)
    runner = web.AppRunner(application(provider.routes(), key), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, plan.place.host, plan.place.port).start()
        host, port = runner.addresses[0][:2]
        api = f"http://{HostPort(host, port)}"
        # Before the group, which would wrap the node's refusal.
        for registration in registrations(plan, provider, api):
            await asyncio.to_thread(node.post, "/api/v0/ai/model/register", registration)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(provider.run())
            name = f"{plan.project}/{plan.name}"
            ready(f"ready {plan.service}={api} registered={name} node={node.target.url}")
            await stopped.wait()
            working.cancel()
        fields = {"project": plan.project, "model": plan.name, "cid": provider.cid}
        await asyncio.to_thread(node.post, "/api/v0/ai/model/unregister", fields)
    finally:
        await runner.cleanup()


def registrations(plan: ProviderPlan, provider: Provider, api: str) -> Iterator[dict[str, object]]:
    """Yield the registrations for the node. They name the key's file, so the key itself stays there."""
    header = f"Bearer @{(plan.folder / _KEY).resolve()}"
    for kind, dialect in provider.types.items():
        yield {
            "project": plan.project,
            "model": plan.name,
            "cid": provider.cid,
            "api": api,
            "type": int(kind),
            "dialect": dialect,
            "headers": {"authorization": header},
        }


def _key(path: Path) -> str:
    """Return the key of this folder; create it if it does not exist."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()
