"""`modelvine bridge`: what it takes, and what it refuses before anything is opened."""

import os
import signal
import subprocess
import sys

import pytest

from node import bridge
from node.cli import main
from node.cli.bridge import DIALECTS


def test_every_dialect_of_a_bridge_is_an_option() -> None:
    assert bridge.NAMES == DIALECTS


@pytest.mark.parametrize(
    ("listen", "said"),
    [("nonsense", "HOST:PORT"), ("0.0.0.0:0", "--open"), ("gpu7.example:3000", "--open")],
)
def test_an_invalid_address_and_a_public_one_without_open_are_refused(listen, said, capsys) -> None:
    arguments = [
        "bridge",
        "--dialect",
        "tgi",
        "--upstream",
        "http://127.0.0.1:1",
        "--listen",
        listen,
    ]
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_an_unreachable_upstream_is_reported_without_a_traceback(capsys) -> None:
    assert main(["bridge", "--dialect", "tgi", "--upstream", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "--model" in error
    assert "Traceback" not in error


def test_a_bridge_says_where_it_listens_and_ends_on_sigterm() -> None:
    command = [sys.executable, "-m", "node", "bridge", "--dialect", "tgi", "--model", "tiny"]
    upstream = ["--upstream", "http://127.0.0.1:1"]
    with subprocess.Popen([*command, *upstream], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    assert line.startswith("ready tgi=127.0.0.1:")
    assert line.endswith(" models=tiny\n")
