"""Keys of a site: made or revoked at one node, they are so at once at all that share its store; a hop reveals no user."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.swarm.client import PROMPT, Client, Seen
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "for-holders"
USER = "canary-user-31fe"
MEANT = 1.0
"""Seconds in which a change is known at every node of the site."""

WINDOW = float(os.environ.get("LIMIT_SECONDS", "20"))
"""Seconds in which the requests that a limit lets through are counted."""


SharedStore = RedisServer | PostgresServer
OF_REDIS = pytest.mark.parametrize("store", ["redis"], indirect=True)
"""Mark for tests for which the kind of store does not matter."""


@pytest.fixture(scope="module", params=["redis", "postgres"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedStore]:
    """The store of the site."""
    folder = tmp_path_factory.mktemp("store")
    with RedisServer(folder) if request.param == "redis" else PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, store: SharedStore
) -> Iterator[tuple[Node, Node, Node]]:
    """Two nodes of one site, of which the second has a helper, and one of another site; all require a key."""
    with Swarm(tmp_path_factory.mktemp("nodes")) as swarm:
        closed = {"open": "nobody", "log_level": "debug"}
        site = {**closed, "store": store.url}
        first, second, other = swarm.start_all(
            Start("first", {"node": site}),
            Start("second", {"node": {**site, "workers": 2}}),
            Start("other", {"node": {**closed, "store": "memory"}}),
        )
        yield first, second, other


@pytest.fixture
async def worker(nodes: tuple[Node, Node, Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker of the other site's."""
    async with running() as worker:
        row = {"project": "keys", "model": MODEL, "api": worker.url}
        answer = await client.post(
            nodes[2], "/api/v0/ai/model/register", row, headers=operator(nodes[2])
        )
        assert answer.status == 200, answer.body
        yield worker


def operator(node: Node) -> dict[str, str]:
    return bearer((node.folder / "control.token").read_text().strip())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(client: Client, node: Node, key: str) -> Seen:
    body = {"model": MODEL, "messages": PROMPT}
    # A connection of its own: another process of the node may take it.
    headers = {**bearer(key), "Connection": "close"}
    return await client.post(node, "/v1/chat/completions", body, headers=headers)


async def changed(client: Client, node: Node, path: str, body: object = None) -> str:
    """Change keys as the operator, and return the first that was made."""
    answer = await client.post(node, f"/api/v1/keys{path}", body or {}, headers=operator(node))
    assert answer.status == 200, answer.body
    return str(orjson.loads(answer.body).get("keys", [{"key": ""}])[0]["key"])


async def test_a_key_opens_and_stops_opening_every_node_of_its_site_within_a_second(
    nodes: tuple[Node, Node, Node], client: Client, worker: OpenAIWorker, store: SharedStore
) -> None:
    first, second, other = nodes
    key = await changed(client, first, "", {"keys": [{"name": USER, "models": [MODEL]}]})

    async def answered(node: Node, status: int) -> bool:
        # Either process answers chats, and the first one alone answers lists.
        for _ in range(4):
            listed = client.session.get(
                f"{node.http}/v1/models", headers={**bearer(key), "Connection": "close"}
            )
            async with listed as response:
                if not (await ask(client, node, key)).status == response.status == status:
                    return False
        return True

    opened = await until(
        lambda: answered(second, 200), within=MEANT + 1, otherwise="the key opens the second node"
    )
    assert await answered(first, 200)
    assert await answered(other, 401)
    await changed(client, second, f"/{USER}/revoke")
    ended = await until(
        lambda: answered(first, 401), within=MEANT, otherwise="the key is refused at the first"
    )
    assert await answered(second, 401)
    show("a key of a site", opened=opened, ended=ended)
    # Neither the key nor its holder's name is anywhere but in the store and in the operator's answer.
    for node in nodes:
        stored = node.log.encode() + _files(node.folder)
        assert key.encode() not in stored
        assert USER.encode() not in stored
    received = b"".join(repr(request).encode() for request in worker.received)
    assert key.encode() not in received
    assert USER.encode() not in received
    stored = _keys_in(store)
    assert USER.encode() in stored
    assert key.encode() not in stored


def _keys_in(store: SharedStore) -> bytes:
    if isinstance(store, RedisServer):
        return store.command("HGETALL", "modelvine:keys")
    rows = store.rows("SELECT key, value FROM modelvine.entry WHERE space = 'keys'")
    return b" ".join(part for row in rows for part in row)


def _files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_while_the_store_is_frozen_known_keys_work_and_no_request_waits(
    nodes: tuple[Node, Node, Node], client: Client, worker: OpenAIWorker, store: SharedStore
) -> None:
    first = nodes[0]
    key = await changed(client, first, "", {"keys": [{"name": "steady"}]})
    before = sorted([(await ask(client, first, key)).seconds for _ in range(30)])
    store.freeze()
    try:
        answers = [await ask(client, first, key) for _ in range(60)]
        assert {answer.status for answer in answers} == {200}
        late = sorted(answer.seconds for answer in answers)[53] - before[27]
        show("a frozen store", later_at_9_of_10=late)
        assert late < 0.1
        refused = await client.post(
            first, "/api/v1/keys", {"keys": [{"name": "new"}]}, headers=operator(first)
        )
        assert refused.status == 500
        assert b"not_saved" in refused.body
    finally:
        store.thaw()


async def test_a_limit_holds_over_all_nodes_and_processes_of_a_site(
    nodes: tuple[Node, Node, Node], client: Client, worker: OpenAIWorker
) -> None:
    await _limit_holds(nodes, client, rpm=300)


@OF_REDIS
async def test_a_low_limit_holds_over_all_nodes_and_processes_of_a_site(
    nodes: tuple[Node, Node, Node], client: Client, worker: OpenAIWorker
) -> None:
    await _limit_holds(nodes, client, rpm=60)


async def _limit_holds(nodes: tuple[Node, Node, Node], client: Client, *, rpm: int) -> None:
    """Twenty callers ask all the time, ten at each node, of which one has two processes."""
    first, second, _ = nodes
    name = f"limited-{rpm}"
    key = await changed(client, first, "", {"keys": [{"name": name, "rpm": rpm}]})

    async def known() -> bool:
        headers = bearer(key)
        async with client.session.get(f"{second.http}/v1/models", headers=headers) as response:
            return response.status == 200

    await until(known, within=MEANT, otherwise="the second node knows the key")
    ends, passed, refused = time.monotonic() + WINDOW, list[float](), list[Seen]()

    async def caller(node: Node) -> None:
        while time.monotonic() < ends:
            answer = await ask(client, node, key)
            if answer.status == 200:
                passed.append(time.monotonic())
            else:
                assert answer.status == 429, answer.body
                refused.append(answer)
            await asyncio.sleep(0.02)

    await asyncio.gather(*(caller(node) for node in (first, second) for _ in range(10)))
    evenly, burst, processes = rpm * WINDOW / 60, rpm // 30, 3
    show(f"{rpm} requests a minute, {WINDOW:g} s", passed=len(passed), evenly=evenly)
    assert evenly * 0.9 <= len(passed) <= evenly + burst + processes + rpm / 60 * 0.5
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)


@OF_REDIS
async def test_every_node_of_a_site_shows_what_all_processes_have_counted(
    nodes: tuple[Node, Node, Node], client: Client, worker: OpenAIWorker
) -> None:
    first, second, _ = nodes
    key = await changed(client, first, "", {"keys": [{"name": "counted"}]})

    async def opened() -> bool:
        return all([(await ask(client, second, key)).status == 200 for _ in range(8)])

    await until(opened, within=MEANT, otherwise="the second node knows the key")
    answers = [await ask(client, node, key) for node in (first, second) for _ in range(20)]
    assert {answer.status for answer in answers} == {200}

    async def counted(node: Node) -> int:
        url = f"{node.http}/api/v1/usage?by=key,node&key=counted"
        async with client.session.get(url, headers=operator(node)) as response:
            rows = (await response.json())["usage"]
        assert {row["node"] for row in rows} <= {nodes[2].peer, "-"}
        return sum(row["requests"] - row["failed"] for row in rows)

    async def agree() -> bool:
        return await counted(first) == await counted(second) >= 48

    # Each writes every five seconds.
    seconds = await until(agree, within=7, otherwise="both nodes show the same sum")
    show("usage of a site", agree_after=seconds)
    assert await counted(first) == await counted(second)
