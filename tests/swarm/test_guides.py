"""Shell blocks of README.md and docs/guides.md, each run as it stands, but for what `SUBSTITUTIONS` says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.swarm.nodes import Swarm
from tests.swarm.waiting import show

pytestmark = pytest.mark.swarm

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guides.md")
PATIENCE = 100
"""Seconds that a section may take at most."""
STAND_INS = Path(__file__).with_name("guides.sh")

NOT_RUN = {
    "make demo": "installs everything and fetches a model; .ci/run runs it",
    "sudo cp deploy/nginx.conf": "needs nginx with a real domain; test_proxies.py runs that sample",
    "pip install open-webui": "Open WebUI is gigabytes; test_openai_client.py asks in its words",
    "claude": "tests/clients/test_agents.py runs it with these settings",
    "codex": "tests/clients/test_agents.py runs it with these settings",
    "aider": "tests/clients/test_agents.py runs it with these settings",
}
"""Beginnings of blocks that cannot be run here, each with the reason."""

SUBSTITUTIONS = (
    ("make install && . .venv/bin/activate", ":"),
    ("/ip4/192.0.2.10/tcp/6101/p2p/12D3KooW…", '"$FIRST"'),
    ("--listen /ip4/0.0.0.0/tcp/6101", "--listen /ip4/127.0.0.1/tcp/0"),
    ("--http 0.0.0.0:6100", "--http 127.0.0.1:0"),
    ("http://127.0.0.1:6100", '"$MODELVINE_NODE"'),
    ("http://127.0.0.1:8080", '"$WORKER"'),
    ("http://127.0.0.1:8000", '"$VLLM"'),
    ("/var/lib/private/modelvine", '"$MODELVINE_DATA_DIR"'),
)
"""What stands on the page, and what is run in its place: addresses, ports and paths that are free here."""

NEEDS = {
    "Add a machine": "Run a node",
    "Coding agents": "Quick start with a real engine",
    "Open WebUI": "Quick start with a real engine",
    "Upgrade and roll back": "Quick start with a real engine",
    "Read a route": "Quick start with a real engine",
}
"""Sections that go on where another one ended."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of a page with its shell blocks, in their order."""

    page: str
    title: str
    blocks: tuple[str, ...]

    @property
    def run(self) -> tuple[str, ...]:
        """The blocks that are run."""
        return tuple(block for block in self.blocks if reason(block) is None)


def reason(block: str) -> str | None:
    """Return why a block is not run; None where it is."""
    reasons = [
        explanation
        for beginning, explanation in NOT_RUN.items()
        if re.match(rf"{beginning}\b", block)
    ]
    return reasons[0] if reasons else None


def sections() -> list[Section]:
    """Return what has shell blocks."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
            title = part.partition("\n")[0].lstrip("# ")
            blocks = re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
            if blocks:
                found.append(Section(page, title, tuple(blocks)))
    return found


SECTIONS = {section.title: section for section in sections()}
RUN = [section for section in SECTIONS.values() if section.run]


def script(section: Section) -> str:
    """Return what bash is given: the blocks of a section, after those that it needs."""
    before = SECTIONS[NEEDS[section.title]].run if section.title in NEEDS else ()
    text = "\n".join((*before, *section.run))
    for printed, here in SUBSTITUTIONS:
        text = text.replace(printed, here)
    return text


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a worker that stands in for an engine."""
    with Swarm(tmp_path_factory.mktemp("worker")) as swarm:
        yield swarm.start_worker("worker").fields["url"]


@pytest.mark.parametrize("section", RUN, ids=lambda section: section.title.replace(" ", "-"))
def test_the_commands_of_a_section_work(section: Section, worker: str, tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MODELVINE_")
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "ROOT": str(ROOT),
        "PYTHON": sys.executable,
        "WORKER": worker,
    }
    # bash prints each command before it runs it, so that the one that failed is the last in the report.
    text = f". {STAND_INS}\nset -x\n{script(section)}\n"
    with subprocess.Popen(
        ["bash", "-c", text],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as ran:
        try:
            output, _ = ran.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)
            pytest.fail(f"not done within {PATIENCE} s:\n{ran.communicate()[0][-6000:]}")
    assert ran.returncode == 0, output[-6000:]


def test_every_block_is_run_or_named_with_its_reason() -> None:
    blocks = [block for section in SECTIONS.values() for block in section.blocks]
    not_run = {block: explanation for block in blocks if (explanation := reason(block)) is not None}
    assert len(not_run) == len(NOT_RUN), "a reason stands for a block that is gone, or for two"
    everything = "\n".join(blocks)
    assert not [printed for printed, _ in SUBSTITUTIONS if printed not in everything]
    fences = sum((ROOT / page).read_text().count("```sh\n") for page in PAGES)
    assert len(blocks) == fences
    show("shell blocks", run=str(len(blocks) - len(not_run)), not_run=str(len(not_run)))
    for block, explanation in not_run.items():
        print(f"    not run: {block.partition(chr(10))[0]}: {explanation}")
