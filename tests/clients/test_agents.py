"""Published coding agents at a node, set up as the guide says. Each writes a file as the model says."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.clients.tried import ROOT
from tests.swarm.client import connected
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import until
from tests.workers.agent_worker import SAID

pytestmark = pytest.mark.clients

MODULES = Path(__file__).parent / "agents" / "node_modules"
GUIDE = (ROOT / "docs" / "guides.md").read_text()
SHOWN = "http://127.0.0.1:6100"
"""URL of the node in the guide."""
TASK = "Write to vine.txt what grows on a vine."
WITHIN = 60
"""Seconds that an agent may take; each takes about one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node with the model `llama`, and the folder where its worker keeps each request."""

    node: Node
    asked: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A node and its worker."""
    folder = tmp_path / "asked"
    folder.mkdir()
    with Swarm(tmp_path) as swarm:
        node = swarm.start("node")
        worker = swarm.start_worker("worker", str(folder), module="tests.workers.agent_worker")
        asyncio.run(_introduce(node, worker.fields["url"]))
        yield Place(node, folder)


async def _introduce(node: Node, url: str) -> None:
    async with connected() as client:
        body = {"project": "mine", "models": [{"model": "llama", "api": url, "type": 0}]}
        answer = await client.post(node, "/api/v0/ai/project/register", body)
        assert answer.status == 200, answer.body
        await client.listed([node], "llama")


def _program(name: str, of: str) -> str:
    """Return an agent's own program; its launcher would need a Node.js beside it."""
    paths = [
        path for path in (MODULES / of).rglob(name) if path.is_file() and os.access(path, os.X_OK)
    ]
    if not paths:
        pytest.skip(f"{name} is not installed; `make clients` installs it, or says why it cannot")
    return str(paths[0])


def _run(home: Path, command: list[str], settings: dict[str, str]) -> str:
    """Give an agent its task, in a folder of its own and with nothing of this environment; return what it said."""
    (home / "work").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm", **settings}
    ran = subprocess.run(
        command,
        cwd=home / "work",
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert (home / "work" / "vine.txt").read_text() == "grapes\n", ran.stdout
    return ran.stdout


def _set(place: Place, section: str) -> dict[str, str]:
    """Return the variables that the guide sets for an agent, with this node in place of the guide's."""
    lines = re.findall(r"^export (.+)", section, re.MULTILINE)
    pairs = (assignment.split("=", 1) for line in lines for assignment in line.split())
    return {
        name: value.replace(SHOWN, place.node.http).replace('"$KEY"', "unused")
        for name, value in pairs
    }


def _refused(place: Place) -> list[str]:
    """Return the lines of the node's log about failed requests, once all lines are written."""

    def told() -> list[str]:
        return [line for line in place.node.log.splitlines() if " status=" in line]

    async def complete() -> bool:
        return len(told()) >= len(list(place.asked.iterdir()))

    # A node writes its lines by a timer.
    asyncio.run(until(complete, within=5, otherwise="the log lacks requests"))
    return [line for line in told() if " status=200 " not in line]


def test_claude_code_searches_for_a_tool_and_runs_a_command(place: Place, tmp_path: Path) -> None:
    program = _program("claude", "@anthropic-ai")
    section = GUIDE.partition("**Claude Code**")[2].partition("**Codex**")[0]
    quiet = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    }
    command = [program, "-p", TASK, "--allowedTools", "Bash", "ToolSearch"]
    output = _run(tmp_path / "home", command, _set(place, section) | quiet)
    assert output.strip() == SAID
    assert not _refused(place)
    *_, last = sorted(place.asked.iterdir())
    messages = orjson.loads(last.read_bytes())["messages"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results[0] == "The tool WebFetch can be called."
    assert len(results) == 2


def test_codex_runs_a_command(place: Place, tmp_path: Path) -> None:
    program = _program("codex", "@openai")
    section = GUIDE.partition("**Codex**")[2].partition("**aider**")[0]
    [written] = re.findall(r"^```toml\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    home = tmp_path / "home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(
        written.replace(SHOWN, place.node.http) + "\n[analytics]\nenabled = false\n"
    )
    # The task runs here anyway, and not every kernel lets Codex make a sandbox.
    command = [program, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", TASK]
    output = _run(home, command, _set(place, section))
    assert output.strip() == SAID
    assert not _refused(place)


def test_aider_writes_a_file(place: Place, tmp_path: Path) -> None:
    program = ROOT / ".venv" / "aider" / "bin" / "aider"
    if not program.exists():
        pytest.skip("aider is not installed; `make clients` installs it, or says why it cannot")
    section = GUIDE.partition("**aider**")[2].partition("\n## ")[0]
    [options] = re.findall(r"^aider (.+)", section, re.MULTILINE)
    quiet = ["--no-git", "--no-check-update", "--no-show-release-notes", "--analytics-disable"]
    task = ["--yes-always", "--message", TASK, "vine.txt"]
    _run(tmp_path / "home", [str(program), *options.split(), *quiet, *task], _set(place, section))
    assert not _refused(place)
