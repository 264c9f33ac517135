"""A node whose disk is full: it keeps serving, refuses registrations that it cannot save, and recovers.

A limit on the file sizes of a real process stands in for the disk: appending to its database or its log fails.
"""

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker

NOWHERE = "http://127.0.0.1:9/v1"
REGISTER = "/api/v0/ai/project/register"
LATE = {"project": "late", "models": [{"model": "late", "api": NOWHERE, "type": 0}]}


@pytest.fixture
def node(swarm: Swarm) -> Node:
    return swarm.start("full")


def fill(node: Node, *, limit: int) -> None:
    _, hard_limit = resource.prlimit(node.actor.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.actor.process.pid, resource.RLIMIT_FSIZE, (limit, hard_limit))


def empty(node: Node) -> None:
    _, hard_limit = resource.prlimit(node.actor.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.actor.process.pid, resource.RLIMIT_FSIZE, (hard_limit, hard_limit))


async def state(client: Client, node: Node) -> str:
    return str((await client.get(node, "/readyz"))["parts"]["store"])


async def test_a_node_serves_on_while_its_disk_and_its_log_are_full(
    node: Node, worker: OpenAIWorker, client: Client
) -> None:
    await client.register(node, "early", ["early"], worker.url)
    fill(node, limit=1)
    response = await client.post(node, REGISTER, LATE)
    assert response.status == 500
    assert b'"not_saved"' in response.body
    assert "late" not in await client.models(node)
    told = await state(client, node)
    assert told.endswith(": no changes are saved")
    # The reason is told, but no path: every caller that reaches the node can read it.
    assert told.partition(":")[0].encode() in response.body
    views = [await client.get(node, path) for path in ("/readyz", "/api/v1/status")]
    for text in (response.body.decode(), *map(str, views)):
        assert str(node.folder) not in text
        assert ".db" not in text
    answers = [await client.chat(node, "early") for _ in range(200)]
    assert {answer.status for answer in answers} == {200}
    written = len(node.log)
    await asyncio.sleep(0.3)
    assert len(node.log) == written
    empty(node)

    async def well() -> bool:
        return await state(client, node) == "ok"

    back = await until(well, within=5, otherwise="the store does not work again")
    assert "late" not in await client.models(node)
    assert (await client.post(node, REGISTER, LATE)).status == 200
    assert "late" in await client.models(node)
    told = await until(
        lambda: "log lines were dropped" in node.log, within=3, otherwise="nothing is told of lost lines"
    )  # fmt: skip
    show("full disk", requests="200, 0 failed", well_again_after=back, lost_lines_told_after=told)


async def test_after_a_restart_saved_registrations_are_back_and_refused_ones_are_not(
    tmp_path: Path, client: Client
) -> None:
    with Swarm(tmp_path) as swarm:
        node = swarm.start("full")
        await client.register(node, "early", ["early"], NOWHERE)
        fill(node, limit=1)
        assert (await client.post(node, REGISTER, LATE)).status == 500
        await asyncio.to_thread(swarm.kill, node.actor)
        again = swarm.again(node)
        assert await client.models(again) == {"early"}


async def test_a_node_stops_with_status_0_on_a_full_disk(tmp_path: Path, client: Client) -> None:
    with Swarm(tmp_path) as swarm:
        node = swarm.start("full")
        fill(node, limit=1)
        await client.post(node, REGISTER, LATE)
        assert await asyncio.to_thread(swarm.stop, node) == 0


STARTED_ON_A_FULL_DISK = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.argv = ["modelvine", "up", "--http", "127.0.0.1:0", "--data-dir", sys.argv[1]]
runpy.run_module("node", run_name="__main__")
"""


def test_a_node_that_cannot_save_its_key_says_so_and_does_not_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STARTED_ON_A_FULL_DISK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "identity.key" in ended.stderr
