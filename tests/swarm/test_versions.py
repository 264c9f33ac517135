"""The previous version, from the repository's history: it understands this one in a mesh, and takes over its data directory."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import orjson
import pytest

from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import until
from tests.workers.openai_worker import OpenAIWorker

pytestmark = pytest.mark.swarm

BEFORE = "c1a115e4"
"""The last commit without grants, receipts and the console."""

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "registry/mesh/libp2p/stand_ins.py"
RUN = """
import runpy, sys
stand_ins, before = sys.argv[1:3]
del sys.argv[1:3]
# It would import all of libp2p, of whose requirements only a part is installed.
sys.meta_path.insert(0, runpy.run_path(stand_ins)["Finder"]())
sys.path.insert(0, before)
runpy.run_module("node", run_name="__main__")
"""
MODEL = "carried-over"


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the previous version."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", BEFORE, "node", "registry", "router"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        pytest.skip(
            f"the history does not reach back to {BEFORE}: {packed.stderr.decode().strip()}"
        )
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def start_before(swarm: Swarm, before: Path, name: str, *known: Node) -> Node:
    """Run a node of the previous version, in the data directory of that name."""
    folder = swarm.folder / name
    addresses = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
    dialled = [argument for node in known for argument in ("--bootstrap", node.p2p)]
    actor = swarm.start_program(
        name, sys.executable, "-c", RUN, str(STAND_INS), str(before), "up", *addresses, "--data-dir", str(folder), *dialled
    )  # fmt: skip
    return Node(Start(name), actor, folder)


async def answered(client: Client, node: Node, model: str, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "messages": PROMPT}
    return (await client.post(node, "/v1/chat/completions", body, headers=headers)).status


async def changed(client: Client, node: Node, path: str, body: object) -> dict[str, object]:
    response = await client.post(node, path, body)
    assert response.status == 200, response.body
    answer = orjson.loads(response.body)
    assert isinstance(answer, dict)
    return answer


async def test_nodes_of_both_versions_answer_each_other(
    tmp_path: Path, before: Path, client: Client, worker: OpenAIWorker
) -> None:
    with Swarm(tmp_path) as swarm:
        new = swarm.start("new")
        old = start_before(swarm, before, "old", new)
        # A record with content that the previous version does not know.
        await changed(client, new, "/api/v1/grants", {"name": "ann"})
        await changed(client, new, "/api/v1/keys/ann/revoke", {})
        await client.register(new, "p", ["of-the-new"], worker.url)
        await client.register(old, "p", ["of-the-old"], worker.url)
        for asked, model in ((old, "of-the-new"), (new, "of-the-old")):

            async def served(asked: Node = asked, model: str = model) -> bool:
                return await answered(client, asked, model) == 200

            await until(served, within=10, otherwise=f"{model} is answered over a hop")
        assert await client.digest(new) == await client.digest(old)


async def test_the_previous_version_takes_over_a_data_directory_and_gives_it_back(
    tmp_path: Path, before: Path, client: Client, worker: OpenAIWorker
) -> None:
    with Swarm(tmp_path) as swarm:
        new = swarm.start("node")
        await client.register(new, "p", [MODEL], worker.url)
        created = await changed(client, new, "/api/v1/keys", {"keys": [{"name": "ann"}]})
        assert isinstance(created["keys"], list)
        key = str(created["keys"][0]["key"])
        limited = [{"name": "bob", "model_limits": [{"model": "m*", "rpm": 5}]}]
        await changed(client, new, "/api/v1/keys", {"keys": limited})
        grant = str((await changed(client, new, "/api/v1/grants", {"name": "eve"}))["invitation"])
        assert await answered(client, new, MODEL, key) == 200
        assert swarm.stop(new) == 0

        old = start_before(swarm, before, "node")
        assert old.peer == new.peer
        assert [await answered(client, old, MODEL, key), await answered(client, old, MODEL)] == [
            200,
            200,
        ]
        # It does not know grants, and refuses them.
        assert await answered(client, old, MODEL, grant) == 401
        names = {entry["name"] for entry in (await client.get(old, "/api/v1/keys"))["keys"]}
        assert {"ann", "bob"} <= names
        assert swarm.stop(old) == 0

        again = swarm.start("node")
        for credential in (key, grant):
            assert await answered(client, again, MODEL, credential) == 200
        usage = (await client.get(again, "/api/v1/usage?by=key"))["usage"]
        assert next(row["requests"] for row in usage if row["key"] == "ann") >= 3
        assert "Traceback" not in old.log + again.log
