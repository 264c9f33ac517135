"""The description of the API against a real node: schemathesis sends valid and invalid requests for all it describes."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.tried import ROOT, SCRIPTS
from tests.swarm.client import connected
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show

pytestmark = pytest.mark.clients

PROGRAMS = ROOT / ".venv/openapi/bin"
CONFIG = Path(__file__).parent / "schemathesis.toml"
MODEL = "tiny"

WITHIN = 240
"""Seconds that a program may take; on two processors with other work it took 70."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a worker."""
    with Swarm(tmp_path_factory.mktemp("described")) as swarm:
        node = swarm.start(Start("described", {"mesh": {"mdns": False}}))
        worker = swarm.start_worker("worker").fields["url"]

        async def introduce() -> None:
            async with connected() as client:
                await client.register(node, "p", [MODEL], worker)

        asyncio.run(introduce())
        yield node


def program(name: str) -> Path:
    """Return one of the programs of requirements-openapi.lock."""
    path = PROGRAMS / name
    if not path.exists():
        pytest.skip(
            "schemathesis is not installed; `make clients` installs it, or says why it cannot"
        )
    return path


def run(folder: Path, *arguments: object) -> str:
    """Run a program that must find nothing, and return what it said."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    ran = subprocess.run(
        [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN,
        env=env,
        cwd=folder,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def test_valid_requests_are_answered_as_the_description_says(node: Node, tmp_path: Path) -> None:
    run(tmp_path, program("python"), SCRIPTS / "with_schemathesis.py", node.http, MODEL)


def test_schemathesis_finds_nothing(node: Node, tmp_path: Path) -> None:
    options = ("--no-color", "--config-file", CONFIG)
    output = run(tmp_path, program("st"), *options, "run", f"{node.http}/openapi.json")
    show("schemathesis", cases=output.partition("Test cases:")[2].strip().partition("\n")[0])
    assert " failed" not in node.log
