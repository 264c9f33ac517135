"""What can a stranger do to the swarm? Without its key nothing; as a member it is ignored when it misbehaves."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from node.secrets.identity import load
from node.secrets.secret_files import write_new_swarm_key
from router.peers.tls import certificate_of, client_context
from tests.lab.lab import MESH_PORT, Lab
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile, show, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NOWHERE = "http://127.0.0.1:9/v1"
FLOOD = 2_000
MAX_GROWTH = 64.0
"""MiB that a node may grow by under everything that hostile peers say."""


async def test_a_node_with_another_swarm_key_or_none_never_appears_and_gets_no_answer(
    lab: Lab, network: Network, client: Client, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.key", tmp_path / "theirs.key"
    write_new_swarm_key(ours)
    write_new_swarm_key(theirs)
    first = await asyncio.to_thread(lab.start, 1, f"--swarm-key={ours}")
    second = await asyncio.to_thread(lab.start, 2, f"--swarm-key={ours}")
    other = await asyncio.to_thread(lab.start, 3, f"--swarm-key={theirs}", known=(1, 2))
    keyless = await asyncio.to_thread(lab.start, 4, known=(1, 2))
    inside, outside = [first, second], [other, keyless]
    await client.register(first, "secret", ["secret"], await asyncio.to_thread(lab.worker, 1))
    for node in outside:
        await client.register(node, "alien", [f"alien-{node.name}"], NOWHERE)
    await client.met(inside)
    await client.listed(inside, "secret")
    assert (await client.chat(second, "secret")).status == 200
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        for node in inside:
            view = await client.states(node)
            assert not [n.name for n in outside if n.peer in view]
            assert not [model for model in await client.models(node) if model.startswith("alien")]
        for node in outside:
            assert "secret" not in await client.models(node)
        await asyncio.sleep(0.2)
    for node in outside:
        assert (await client.chat(node, "secret")).status == 404
        refused = await _asks_its_link(client, network, node, first)
        show("swarm key", node=node.name, refused_with=refused)
    for node in (first, second, other, keyless):
        await asyncio.to_thread(lab.kill, node)


async def _asks_its_link(client: Client, network: Network, stranger: Node, node: Node) -> str:
    """Ask a node as another node would, with a stranger's own key and from its host; return how it was refused."""
    link = str((await client.get(node, "/api/v1/status"))["link"])
    context = client_context(load(stranger.folder), certificate_of(load(node.folder)))
    host = int(stranger.name[1:])
    connector = aiohttp.TCPConnector(socket_factory=lambda to: network.socket_on(host, *to[:3]))
    body = {"model": "secret", "messages": []}
    headers = {"x-modelvine-hop": stranger.peer}
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        with pytest.raises(aiohttp.ClientError) as refused:
            await session.post(
                f"https://{link}/v1/chat/completions", json=body, headers=headers, ssl=context
            )
    return type(refused.value).__name__


class Hostile:
    """The peers of `tests.lab.hostile`, at the other end of a pair of pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def do(self, command: str = "") -> dict[str, float]:
        """Give a command, and return the answer to it."""
        return await asyncio.to_thread(self._do, command)

    def _do(self, command: str) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        if command:
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


@contextmanager
def _hostile(lab: Lab, host: int) -> Iterator[Hostile]:
    listen = f"/ip4/{lab.network.address(host)}/tcp/{MESH_PORT}"
    victims = [lab.mesh_address(number) for number in (1, 2, 3)]
    command = lab.command(host, "tests.lab.hostile", listen, *victims)
    pipe = subprocess.PIPE
    with (lab.folder / "hostile.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=pipe, stdout=pipe, stderr=log, text=True
        )
    try:
        yield Hostile(process)
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
async def three(lab: Lab, client: Client) -> AsyncIterator[list[Node]]:
    """Three honest nodes; each is the same process afterwards."""
    nodes = [await asyncio.to_thread(lab.start, host) for host in (1, 2, 3)]
    await client.met(nodes, within=30)
    yield nodes
    assert all(node.running for node in nodes)
    assert "Traceback" not in "".join(node.log for node in nodes)


async def test_honest_nodes_hear_and_answer_one_another_whatever_hostile_peers_say(
    three: list[Node], lab: Lab, client: Client
) -> None:
    url = await asyncio.to_thread(lab.worker, 2)
    await client.register(three[1], "honest", ["honest"], url)
    await client.listed(three, "honest")
    with _hostile(lab, 5) as hostile:
        await hostile.do()
        # The frames that it hears of these are replayed after they are withdrawn.
        for turn in range(3):
            await client.register(three[1], "brief", [f"brief-{turn}"], NOWHERE)
            await client.listed(three, f"brief-{turn}")

        async def overheard() -> bool:
            return (await hostile.do("heard"))["frames"] >= 3

        await until(overheard, within=20, otherwise="the hostile peers hear nothing")
        await client.unregister(three[1], "brief")
        await client.agreed(three)
        before = [_resident(node) for node in three]
        for command in (f"forge {three[1].peer}", "bad 200", "replay", "replay", f"flood {FLOOD}"):
            await _meanwhile(three, client, hostile, command)
        await client.agreed(three, within=60)
        await _nothing_came_of_it(three, client)
        growth = [_resident(node) - was for node, was in zip(three, before, strict=True)]
    show("hostile peers", grown_by_mib=" / ".join(f"{mib:.1f}" for mib in growth))
    assert max(growth) < MAX_GROWTH


async def _meanwhile(nodes: list[Node], client: Client, hostile: Hostile, command: str) -> None:
    """Run an attack; check that meanwhile the right node answers every request, and that news arrives, if later."""
    before = [await client.events(node) for node in nodes]
    seconds: list[float] = []
    visible: list[float] = []
    async with asyncio.TaskGroup() as group:
        harm = group.create_task(hostile.do(command))
        while not harm.done() or len(visible) < 3:
            model = f"news-{len(visible)}"
            await client.register(nodes[0], "news", [model], NOWHERE)
            visible.append(await client.listed(nodes, model, within=30))
            answer = await client.chat(nodes[2], "honest")
            assert (answer.status, answer.node) == (200, nodes[1].peer), answer
            seconds.append(answer.seconds)
            await client.unregister(nodes[0], "news")
            await asyncio.sleep(0.1)
    report = harm.result()
    show(
        command.split(maxsplit=1)[0],
        **{name: str(report[name]) for name in ("frames", "identities", "pushes_taken")},
        pushes_refused=str(report["pushes_refused"]),
        said_in=report["seconds"],
        news_visible_max=max(visible),
        requests=str(len(seconds)),
        longest=max(seconds),
        p50=percentile(seconds, 0.5),
    )
    judged = 0 if command.startswith("flood") else report["frames"]

    async def are_judged() -> bool:
        now = [await client.events(node) for node in nodes]
        return all(
            (new - was)["frames_bad"] >= judged for was, new in zip(before, now, strict=True)
        )

    await until(are_judged, within=5, otherwise="some frames were not judged")
    now = [await client.events(node) for node in nodes]
    for node, was, new in zip(nodes, before, now, strict=True):
        grown = new - was
        show("counted", at=node.name, **{e: str(grown[e]) for e in ("frames_bad", "offences")})
        # Each frame was judged at each node, and no peer was cut off before it had sent it.
        assert not grown["barred"]
        assert not grown["connections_refused"]
        if judged:
            assert grown["frames_bad"] == judged
            assert grown["offences"] >= judged


async def _nothing_came_of_it(nodes: list[Node], client: Client) -> None:
    """Check that nothing forged is listed, nothing withdrawn is back, all nodes are alive, and well-signed records are there."""
    for node in nodes:
        listed = await client.models(node)
        assert "honest" in listed
        assert not [model for model in listed if model.startswith(("forged", "brief"))]
        spam = sum(model.startswith("spam") for model in listed)
        show("flood", at=node.name, listed=str(spam))
        assert spam == FLOOD
    await client.met(nodes, within=10)
    for turn in range(3):
        assert (await client.chat(nodes[0], f"brief-{turn}")).status == 404


def _resident(node: Node) -> float:
    """Return the memory that a process holds, in MiB."""
    status = Path(f"/proc/{node.actor.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
