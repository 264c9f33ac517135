"""The mesh with go-libp2p: two nodes meet over its daemon alone, which passes their gossip on."""

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.clients.go_daemon import GoDaemon
from tests.clients.tried import ROOT
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until

pytestmark = pytest.mark.clients

DAEMON = ".venv/clients/lib/python3*/site-packages/hivemind/hivemind_cli/p2pd"
TOPIC = "modelvine/1"
RECORD = b"\x01\x01"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes, each alone."""
    with Swarm(tmp_path) as swarm:
        yield [swarm.start(Start(name, {"mesh": {"mdns": False}})) for name in ("one", "two")]


@pytest.fixture
def daemon() -> Iterator[GoDaemon]:
    """A daemon that dials no peer by itself."""
    program = next(ROOT.glob(DAEMON), None)
    if program is None:
        pytest.skip(
            "go-libp2p's daemon is not installed; `make clients` installs it, or says why it cannot"
        )
    # The path of a unix socket has to be short.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        options = ("-listen", f"/unix{path}", "-hostAddrs", "/ip4/127.0.0.1/tcp/0", "-pubsub", "-q")
        environment = {**os.environ, "GOLOG_LOG_LEVEL": "error"}
        with subprocess.Popen(
            (program, *options), env=environment, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield GoDaemon(path)
            finally:
                process.kill()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of the nodes' HTTP interface."""
    async with connected() as client:
        yield client


async def test_two_nodes_meet_over_a_peer_in_go(
    daemon: GoDaemon, nodes: list[Node], client: Client
) -> None:
    one, two = nodes
    await until(daemon.is_there, within=5, otherwise="the daemon does not start")

    with daemon.heard(TOPIC) as messages:
        for node in nodes:
            daemon.connect(node.p2p)
            sent = secrets.token_bytes(32)
            assert daemon.ping(node.peer, sent) == sent
        records: set[str] = set()
        while records != {one.peer, two.peer}:
            author, data = next(messages)
            records |= {author} if data.startswith(RECORD) else set()
        # The daemon answers no comparison: news passes through it only after its heartbeats have taken both nodes into its mesh.
        await asyncio.sleep(3)
        for node in nodes:
            await client.register(node, "p", [node.name], "http://127.0.0.1:1")
        show("a peer in Go", listed=await client.listed(nodes, *(node.name for node in nodes)))
    for node in nodes:
        events = await client.events(node)
        assert not [name for name in ("offences", "frames_bad") if events[name]]
