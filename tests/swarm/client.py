"""Client of the swarm: the few requests that the tests make, over real HTTP and nothing else."""

import asyncio
import io
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from tests.swarm.nodes import Node
from tests.swarm.waiting import until

PROMPT: tuple[Mapping[str, str], ...] = ({"role": "user", "content": "Hello!"},)


_EVENTS = re.compile(r'^modelvine_registry_events_total\{event="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer as the client got it. `seconds` last from the request to the end of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def node(self) -> str:
        """The peer id of the node whose worker answered."""
        return self.headers.get("x-modelvine-node", "")

    @property
    def route(self) -> str:
        """How that node was reached."""
        return self.headers.get("x-modelvine-route", "")


class Client:
    """Client that asks nodes as any HTTP client would."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def get(self, node: Node, path: str) -> Any:
        """Return the JSON under a path; anything but 200 is a failure."""
        async with self.session.get(node.http + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def post(
        self, node: Node, path: str, body: object, *, headers: Mapping[str, str] | None = None
    ) -> Seen:
        """Send JSON and return what came back, whatever its status."""
        data = io.BytesIO(orjson.dumps(body))
        headers = {"Content-Type": "application/json", **(headers or {})}
        began = time.monotonic()
        async with self.session.post(node.http + path, data=data, headers=headers) as response:
            content = await response.read()
            seconds = time.monotonic() - began
            return Seen(response.status, dict(response.headers), content, seconds)

    async def models(self, node: Node) -> set[str]:
        """Return the names that `/v1/models` lists."""
        return {row["id"] for row in (await self.get(node, "/v1/models"))["data"]}

    async def digest(self, node: Node) -> str:
        """Return the digest of the whole registry as a node sees it."""
        return str((await self.get(node, "/api/v1/catalog?digest=1"))["digest"])

    async def states(self, node: Node) -> dict[str, str]:
        """Return the state of every node in a node's live view, by peer id."""
        return {n["node"]: n["state"] for n in (await self.get(node, "/api/v1/catalog"))["nodes"]}

    async def told(self, node: Node) -> dict[str, dict[str, Any]]:
        """Return what a node tells an operator about the other nodes, by peer id."""
        nodes = (await self.get(node, "/api/v1/nodes"))["nodes"]
        return {row["node"]: row for row in nodes if not row["self"]}

    async def metrics(self, node: Node) -> str:
        """Return a node's metrics as a scraper reads them."""
        async with self.session.get(f"{node.http}/metrics") as response:
            return await response.text()

    async def events(self, node: Node) -> Counter[str]:
        """Return how often each event of a node's registry happened, by its metrics."""
        counts = _EVENTS.findall(await self.metrics(node))
        return Counter({event: int(float(times)) for event, times in counts})

    async def loop_lag(self, node: Node) -> float:
        """Return the longest delay of a node's event loop in the last minute, in seconds."""
        return await self._gauge(node, "modelvine_loop_lag_seconds")

    async def loop_busy(self, node: Node) -> float:
        """Return the most processor time that the event loop took between two looks in the last minute, in seconds."""
        return await self._gauge(node, "modelvine_loop_busy_seconds")

    async def _gauge(self, node: Node, name: str) -> float:
        match = re.search(rf"^{name} (\S+)$", await self.metrics(node), re.MULTILINE)
        assert match
        return float(match[1])

    async def register(
        self, node: Node, project: str, models: Iterable[str], api: str, **fields: object
    ) -> None:
        """Register a project with models that one worker serves."""
        rows = [{"model": model, "api": api, "type": 0, **fields} for model in models]
        body = {"project": project, "models": rows}
        answer = await self.post(node, "/api/v0/ai/project/register", body)
        # What the workers reported about themselves may follow.
        assert (answer.status, answer.body[:23]) == (200, b'{"code":0,"message":"ok')

    async def unregister(self, node: Node, project: str) -> None:
        """Unregister a project."""
        answer = await self.post(node, "/api/v0/ai/project/unregister", {"project": project})
        assert answer.status == 200, answer.body

    async def chat(self, node: Node, model: str, **headers: str) -> Seen:
        """Ask for a whole answer."""
        body = {"model": model, "messages": PROMPT}
        return await self.post(node, "/v1/chat/completions", body, headers=headers)

    @asynccontextmanager
    async def stream(
        self, node: Node, model: str, prompt: str = "Hello!"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for a stream of events; to leave the block early hangs up."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
        }
        url = f"{node.http}/v1/chat/completions"
        async with self.session.post(url, json=body) as response:
            yield response

    async def listed(self, nodes: Sequence[Node], *models: str, within: float = 5.0) -> float:
        """Wait until every node lists these models; return the seconds it took."""

        async def everywhere() -> bool:
            lists = await asyncio.gather(*(self.models(node) for node in nodes))
            return all(set(models) <= names for names in lists)

        return await until(everywhere, within=within, otherwise=f"{models} not listed everywhere")

    async def agreed(self, nodes: Sequence[Node], *, within: float = 5.0) -> float:
        """Wait until every node holds the same registry: a name may be listed still from before the last change."""

        async def one_digest() -> bool:
            return len(set(await asyncio.gather(*map(self.digest, nodes)))) == 1

        return await until(one_digest, within=within, otherwise="the registries are not equal")

    async def met(self, nodes: Sequence[Node], *, within: float = 15.0) -> float:
        """Wait until every node sees every other as alive; return the seconds it took."""
        views: list[Mapping[str, str]] = []

        async def all_alive() -> bool:
            views[:] = await asyncio.gather(*(self.states(node) for node in nodes))
            return all(view.get(node.peer) == "alive" for view in views for node in nodes)

        def not_met() -> str:
            missed = (
                f"{viewer.name} sees {node.name} as {view.get(node.peer, 'unknown')}"
                for viewer, view in zip(nodes, views, strict=True)
                for node in nodes
                if view.get(node.peer) != "alive"
            )
            return f"the nodes have not met: {', '.join(missed)}"

        return await until(all_alive, within=within, otherwise=not_met)


@asynccontextmanager
async def connected(*, patience: float = 30) -> AsyncIterator[Client]:
    """Open a client whose requests take `patience` seconds at most."""
    timeout = aiohttp.ClientTimeout(total=patience, sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Client(session)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield the `data:` of each event as it comes."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip()
