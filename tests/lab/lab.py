"""Nodes of the lab: real processes, one node to a host, that are frozen, killed and started again."""

import asyncio
import random
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import aiohttp

from node.demo.play import STOP_WITHIN, Actor, ProcessGroup
from node.secrets import identity, secret_files
from tests.lab.clock import Clock
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start

HTTP_PORT = 6100
MESH_PORT = 6101


class Lab:
    """Starts nodes and workers on the hosts of a network; ends all of them at once when it is left."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self._stages = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # No graceful stop: it would wait for hosts that are cut off, and a frozen process does not react.
        for process in self._processes:
            process.kill()
        self._stages.close()

    def mesh_address(self, host: int) -> str:
        """Return the mesh address of a host's node, which need not have been started yet."""
        folder = self._folder(host)
        secret_files.make_private_directory(folder)
        peer = identity.load_or_create(folder).peer
        return f"/ip4/{self.network.address(host)}/tcp/{MESH_PORT}/p2p/{peer}"

    def start(
        self,
        host: int,
        *options: str,
        known: Iterable[int] = (1,),
        listen: str = "",
        clock: Clock | None = None,
    ) -> Node:
        """Run a host's node, which dials the nodes of some hosts; a host's second node finds the first one's files."""
        addresses = (
            f"--http={self.network.own_address(host)}:{HTTP_PORT}",
            f"--listen=/ip4/{listen or self.network.address(host)}/tcp/{MESH_PORT}",
            f"--data-dir={self._folder(host)}",
            "--profile=lan",
            "--no-mdns",  # which nodes a node knows is what the tests are about
        )
        dialled = [f"--bootstrap={self.mesh_address(other)}" for other in known if other != host]
        command = self.command(host, "node", "up", *addresses, *dialled, *options)
        actor = self._run(f"h{host}", *(clock.command(*command) if clock else command))
        return Node(Start(f"h{host}"), actor, self._folder(host))

    def start_all(self, hosts: Sequence[int]) -> list[Node]:
        """Run a node on each of these hosts in this order, as many at a time as there is a processor for."""
        for host in hosts:
            self.mesh_address(host)
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(self.start, hosts))

    def worker(self, host: int, *arguments: str) -> str:
        """Run a worker on a host, and return the URL at which that host's node reaches it."""
        command = self.command(host, "tests.swarm.worker_process", *arguments)
        return self._run(f"worker{host}", *command).fields["url"]

    def command(self, host: int, module: str, *arguments: str) -> tuple[str, ...]:
        """Return the arguments to Python that run a module on a host."""
        return ("tests.lab.inside", self.network.namespace(host), module, *arguments)

    def kill(self, node: Node) -> None:
        """End a node as a power cut would."""
        node.actor.process.kill()
        node.actor.process.wait(STOP_WITHIN)

    def freeze(self, node: Node) -> None:
        """Suspend a node: connections to it stay open, and nothing answers."""
        node.actor.process.send_signal(signal.SIGSTOP)

    def thaw(self, node: Node) -> None:
        """Let a frozen node go on; harmless for any other."""
        node.actor.process.send_signal(signal.SIGCONT)

    def _folder(self, host: int) -> Path:
        return self.folder / f"h{host}"

    def _run(self, name: str, module: str, *arguments: str) -> Actor:
        stage = self._stages.enter_context(ProcessGroup(self.folder))
        actor = stage.start(name, module, *arguments)
        self._processes.append(actor.process)
        return actor


def any_order(hosts: Iterable[int], *, last: int) -> list[int]:
    """Return these hosts in an order that differs from run to run, with one of them last."""
    others = [host for host in hosts if host != last]
    random.shuffle(others)
    return [*others, last]


@asynccontextmanager
async def connected(network: Network) -> AsyncIterator[Client]:
    """Open a client that asks each node from that node's own host, so that no fault stands between the two."""

    def on_its_host(address_info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, (address, *_) = address_info
        return network.socket_to(address, family, kind, protocol)

    timeout = aiohttp.ClientTimeout(total=30, sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0, socket_factory=on_its_host)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Client(session)


async def view_without(client: Client, nodes: Sequence[Node], peer: str) -> bool:
    """Whether a peer is in the live view of none of these nodes."""
    views = await asyncio.gather(*map(client.states, nodes))
    return all(peer not in view for view in views)
