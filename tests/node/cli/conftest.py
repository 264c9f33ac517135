import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.cli import main
from tests.node.cli.stand_in import Said, StandIn


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Modelvine = Callable[..., Ended]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def modelvine(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Modelvine]:
    """Run one command in this process, in an empty directory and with a data directory of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELVINE_DATA_DIR", str(data_dir))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    def run(*arguments: str) -> Ended:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse ends so after --help and wrong usage
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    yield run
    # `up` sends every log line to a standard error that is gone after the test.
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StandIn]]:
    """Start a stand-in with these answers by path, and make it the node that commands talk to."""
    running: list[StandIn] = []

    def start(**answers: Said) -> StandIn:
        server = StandIn({path.replace("_", " ", 1): answer for path, answer in answers.items()})
        running.append(server.__enter__())
        monkeypatch.setenv("MODELVINE_NODE", server.url)
        return server

    yield start
    for server in running:
        server.__exit__()
