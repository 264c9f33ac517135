"""Grants between sites: one string joins a private mesh and is a key; what is revoked is refused everywhere in seconds."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from node.secrets.secret_files import write_new_swarm_key
from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Start, Swarm, python
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "shared"
MEANT = 5.0
"""Seconds in which a revocation is known at every node of the mesh that trusts its issuer."""


class Sites:
    """A site that gives grants, and one of another operator that trusts it, in one private mesh; both require a key."""

    def __init__(self, swarm: Swarm, key: Path) -> None:
        self.swarm = swarm
        closed = {"open": "nobody", "store": "memory", "swarm_key": str(key)}
        self.giving = swarm.start(Start("giving", {"node": {**closed, "peers_need_grant": True}}))
        trusting = {**closed, "workers": 2, "trusted_issuers": [self.giving.peer]}
        self.trusting = swarm.start(Start("trusting", {"node": trusting}), known=[self.giving])


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    write_new_swarm_key(folder / "swarm.key")
    with Swarm(folder) as swarm:
        yield Sites(swarm, folder / "swarm.key")


@pytest.fixture
async def worker(sites: Sites, client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker of the site that gives, and one of the other's."""
    async with running() as worker:
        for node in (sites.giving, sites.trusting):
            row = {"project": node.name, "model": f"{MODEL}-{node.name}", "api": worker.url}
            await changed(client, node, "/api/v0/ai/model/register", row)
        yield worker


def bearer(key: str) -> dict[str, str]:
    # A connection of its own: another process of the node may take it.
    return {"Authorization": f"Bearer {key}", "Connection": "close"}


def operator(node: Node) -> dict[str, str]:
    return bearer((node.folder / "control.token").read_text().strip())


async def changed(client: Client, node: Node, path: str, body: object) -> dict[str, object]:
    response = await client.post(node, path, body, headers=operator(node))
    assert response.status == 200, response.body
    answer = orjson.loads(response.body)
    assert isinstance(answer, dict)
    return answer


async def invited(client: Client, node: Node, name: str, **fields: object) -> str:
    answer = await changed(client, node, "/api/v1/grants", {"name": name, **fields})
    return str(answer["invitation"])


async def status(client: Client, node: Node, key: str, model: str) -> int:
    body = {"model": model, "messages": PROMPT}
    return (await client.post(node, "/v1/chat/completions", body, headers=bearer(key))).status


async def test_a_grant_opens_the_nodes_that_trust_its_issuer_until_it_is_revoked(
    sites: Sites, client: Client, worker: OpenAIWorker
) -> None:
    giving, trusting = sites.giving, sites.trusting
    key = await invited(client, giving, "canary-user-9c41", models=[f"{MODEL}*"])
    assert await status(client, giving, key, f"{MODEL}-giving") == 200
    assert await status(client, trusting, key, f"{MODEL}-trusting") == 200
    assert await status(client, trusting, key, "other") == 403
    invitation = await invited(client, trusting, "bob")
    # Trust is configured at one side, not mutual.
    assert await status(client, giving, invitation, f"{MODEL}-giving") == 401
    await changed(client, giving, "/api/v1/keys/canary-user-9c41/revoke", {})
    assert await status(client, giving, key, f"{MODEL}-giving") == 401

    async def refused() -> bool:
        return all([await status(client, trusting, key, MODEL) == 401 for _ in range(4)])

    took = await until(refused, within=MEANT, otherwise="it is refused by both processes")
    show("a revoked grant", refused_elsewhere=took)
    # The other site sees the grant, never its holder's name.
    secret = key.partition(".")[0]
    for node in (giving, trusting):
        assert secret not in node.log
    assert "canary-user-9c41" not in trusting.log
    received = repr(worker.received)
    assert secret not in received
    assert "canary-user-9c41" not in received


async def test_a_machine_joins_with_one_string_and_is_answered_within_its_grant(
    sites: Sites, client: Client, worker: OpenAIWorker, tmp_path: Path
) -> None:
    giving = sites.giving
    key = await invited(client, giving, "gpu-2", models=[f"{MODEL}*"], rpm=30, for_node=True)
    # The invitation holds the mesh's key, so it is no key for models.
    assert await status(client, giving, key, f"{MODEL}-giving") == 401
    invitation = tmp_path / "invitation"
    invitation.touch(mode=0o600)
    invitation.write_text(key)
    with Swarm(tmp_path) as swarm:
        addresses = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
        joining = (*addresses, "--data-dir", str(tmp_path / "data"), "--join", f"@{invitation}")
        actor = swarm.start_program("joining", *python("-m", "node", "up", *joining))
        joined = Node(Start("joining"), actor, tmp_path / "data")

        async def answered() -> bool:
            return await _plain(client, joined, f"{MODEL}-giving") == 200

        took = await until(answered, within=20, otherwise="it is answered by the site it joined")
        show("joined by one string", answered=took)
        # The other site's node requires no grant of its peers.
        assert await _plain(client, joined, f"{MODEL}-trusting") == 200
        await changed(client, giving, "/api/v1/keys/gpu-2/revoke", {})

        async def refused() -> bool:
            return await _plain(client, joined, f"{MODEL}-giving") != 200

        await until(refused, within=MEANT, otherwise="its requests are refused")


async def _plain(client: Client, node: Node, model: str) -> int:
    body = {"model": model, "messages": PROMPT}
    return (await client.post(node, "/v1/chat/completions", body)).status
