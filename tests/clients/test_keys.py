"""Errors that published clients raise for each kind of key, at a node that answers no request without a key."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from secrets import token_hex

import orjson
import pytest

from tests.clients.conftest import ENVIRONMENTS, WITHIN
from tests.clients.tried import SCRIPTS
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm

pytestmark = pytest.mark.clients

MODEL, OTHER = "opened", "closed"
OK = ""
Cases = dict[str, tuple[str, str]]

# TGI's clients have no class for 401, and one of them takes 403 for a shard that is not ready; all pass on the words.
RAISED = {
    ("openai", "clients"): ("AuthenticationError", "PermissionDeniedError", "RateLimitError"),
    ("openai", "clients-new"): ("AuthenticationError", "PermissionDeniedError", "RateLimitError"),
    ("anthropic", "clients"): ("AuthenticationError", "PermissionDeniedError", "RateLimitError"),
    ("text-generation", "clients"): ("UnknownError", "ShardNotReadyError", "OverloadedError"),
    ("huggingface-hub", "clients-new"): ("UnknownError", "UnknownError", "OverloadedError"),
}
"""Exception classes for a key that opens nothing, a model that the key is not for, and one request too many."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Swarm(tmp_path_factory.mktemp("keys")) as swarm:
        node = swarm.start(Start("closed", {"node": {"open": "nobody", "store": "memory"}}))
        worker = swarm.start_worker("talks")
        asyncio.run(_register(node, worker.fields["url"]))
        yield node


@pytest.fixture(params=RAISED, ids="-".join)
def client(request: pytest.FixtureRequest) -> tuple[str, str]:
    package, environment = request.param
    if not (ENVIRONMENTS / environment / "bin" / "python").exists():
        pytest.skip(
            f"{package} is not installed; `make clients` installs it, or says why it cannot"
        )
    return package, environment


def test_each_key_is_accepted_or_raises_the_right_error(
    closed: Node, client: tuple[str, str]
) -> None:
    unopened, forbidden, limited = RAISED[client]
    raised = _run(closed, client, asyncio.run(_keys(closed)))
    expected = {
        "good": OK,
        "none": unopened,
        "wrong": unopened,
        "damaged grant": unopened,
        "expired": unopened,
        "revoked": unopened,
        "another model": forbidden,
        "first": OK,
        "one too many": limited,
        "invited": OK,
    }
    assert {case: outcome["class"] for case, outcome in raised.items()} == expected, raised


def _run(node: Node, client: tuple[str, str], cases: Cases) -> dict[str, dict[str, str]]:
    package, environment = client
    python = ENVIRONMENTS / environment / "bin" / "python"
    ran = subprocess.run(
        [str(python), str(SCRIPTS / "with_keys.py"), package, node.http],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=WITHIN,
        env={"PATH": os.environ["PATH"], "HOME": str(node.folder)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


async def _keys(node: Node) -> Cases:
    # The node remembers how much of its limits a name has used.
    of_client = token_hex(4)
    settings = {
        "good": {},
        "ended": {"expires": 1.0},
        "out": {},
        "limited": {"rpm": 1},
    }
    async with connected() as client:
        keys = [
            {"name": f"{name}-{of_client}", "models": [MODEL], **fields}
            for name, fields in settings.items()
        ]
        created = await _changed(client, node, "/api/v1/keys", {"keys": keys})
        await _changed(client, node, f"/api/v1/keys/out-{of_client}/revoke", {})
        invited = await _changed(client, node, "/api/v1/grants", {"models": [MODEL]})
    assert isinstance(created["keys"], list)
    of = {row["name"].partition("-")[0]: str(row["key"]) for row in created["keys"]}
    grant = str(invited["invitation"])
    return {
        "good": (of["good"], MODEL),
        "none": ("", MODEL),
        "wrong": ("mv_nobody", MODEL),
        "damaged grant": (grant.partition(".")[0][:-9], MODEL),
        "expired": (of["ended"], MODEL),
        "revoked": (of["out"], MODEL),
        "another model": (of["good"], OTHER),
        "first": (of["limited"], MODEL),
        "one too many": (of["limited"], MODEL),
        "invited": (grant, MODEL),
    }


async def _register(node: Node, url: str) -> None:
    async with connected() as client:
        rows = [{"model": name, "api": url} for name in (MODEL, OTHER)]
        body = {"project": "keys", "models": rows}
        await _changed(client, node, "/api/v0/ai/project/register", body)


async def _changed(client: Client, node: Node, path: str, body: object) -> dict[str, object]:
    response = await client.post(node, path, body, headers=_operator(node))
    assert response.status == 200, response.body
    answer = orjson.loads(response.body)
    assert isinstance(answer, dict)
    return answer


def _operator(node: Node) -> dict[str, str]:
    return {"Authorization": f"Bearer {(node.folder / 'control.token').read_text().strip()}"}
