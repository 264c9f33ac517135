"""`modelvine bridge`: what it takes, and what it refuses before anything is opened."""

import os
import signal
import subprocess
import sys

import pytest

from node import bridge
from node.cli import main
from node.cli.bridge import DIALECTS


def test_every_protocol_of_a_bridge_can_be_named() -> None:
    assert bridge.NAMES == DIALECTS


@pytest.mark.parametrize(
    ("listen", "said"),
    [("nonsense", "HOST:PORT"), ("0.0.0.0:0", "--open"), ("gpu7.example:3000", "--open")],
)
def test_a_place_that_will_not_do_is_refused(listen, said, capsys) -> None:
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


def test_an_upstream_that_is_not_there_is_said_in_a_sentence(capsys) -> None:
    assert main(["bridge", "--dialect", "tgi", "--upstream", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "--model" in error
    assert "Traceback" not in error


def test_it_says_where_clients_may_come_and_ends_when_it_is_asked_to() -> None:
    command = [sys.executable, "-m", "node", "bridge", "--dialect", "tgi", "--model", "tiny"]
    upstream = ["--upstream", "http://127.0.0.1:1"]
    with subprocess.Popen([*command, *upstream], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    assert line.startswith("ready tgi=127.0.0.1:")
    assert line.endswith(" models=tiny\n")
