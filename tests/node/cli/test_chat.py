import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import PEER, Said, StandIn, delta

Start = Callable[..., StandIn]

CHAT = "POST_/v1/chat/completions"
ROOT = Path(__file__).parents[3]
DONE = b"data: [DONE]\n\n"
WHO = {"x-modelvine-node": PEER, "x-modelvine-route": "direct", "x-modelvine-attempts": "1"}


def streamed(*events: bytes, cut: bool = False) -> Said:
    return Said(events=events, headers=WHO, cut=cut)


def test_the_answer_goes_to_standard_output_and_who_gave_it_to_standard_error(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{CHAT: streamed(delta("Hello"), delta(", you"), DONE)})
    ended = modelvine(
        "chat", "tiny", "Hi", "--system", "Be brief", "--project", "demo", "--max-tokens", "9"
    )
    assert (ended.code, ended.out) == (0, "Hello, you\n")
    assert ended.err.startswith(f"[{PEER}, direct; first token 0.")
    asked = server.heard[0]
    assert asked.headers["x-modelvine-project"] == "demo"
    assert asked.body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "max_tokens": 9,
    }


def test_an_answer_for_machines_is_one_object(modelvine: Modelvine, node: Start) -> None:
    node(**{CHAT: streamed(delta("Hello"), DONE)})
    found = json.loads(modelvine("chat", "tiny", "Hi", "--json").out)
    assert (found["answer"], found["node"], found["route"]) == ("Hello", PEER, "direct")
    assert 0 < found["first_token_seconds"] <= found["total_seconds"]


def test_the_prompt_is_read_from_standard_input_when_there_is_none(
    modelvine: Modelvine, node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node(**{CHAT: streamed(delta("Yes"), DONE)})
    monkeypatch.setattr(sys, "stdin", io.StringIO("Is this a file?\n"))
    assert modelvine("chat", "tiny").out == "Yes\n"
    assert server.heard[0].body["messages"][0]["content"] == "Is this a file?\n"


def test_nothing_to_say_is_wrong_usage(
    modelvine: Modelvine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert modelvine("chat", "tiny").code == 2


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            streamed(delta("Hel"), b'data: {"error": {"message": "the worker died"}}\n\n'),
            "the worker died",
        ),
        (streamed(delta("Hel")), "broke off before its end"),
        (streamed(delta("Hel"), cut=True), "broke off"),
        (streamed(b"data: nonsense\n\n"), "no chat chunk"),
        (streamed(b"data: [1]\n\n"), "no chat chunk"),
        (streamed(b'data: {"choices": 7}\n\n'), "no chat chunk"),
    ],
)
def test_an_answer_that_does_not_end_well_fails(
    modelvine: Modelvine, node: Start, said: Said, sentence: str
) -> None:
    node(**{CHAT: said})
    ended = modelvine("chat", "tiny", "Hi")
    assert ended.code == 1
    assert sentence in ended.err
    assert "Traceback" not in ended.err


def test_an_unknown_model_is_told_with_the_nearest_names(modelvine: Modelvine, node: Start) -> None:
    said = {"code": 1017, "message": "no node serves the model 'tini'; did you mean tiny?"}
    node(**{CHAT: Said(said, status=404)})
    ended = modelvine("chat", "tini", "Hi")
    assert (ended.code, "did you mean tiny?" in ended.err) == (1, True)


class Terminal:
    """A command at a real pseudo-terminal."""

    def __init__(self, *words: str, node: str, home: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "MODELVINE_NODE": node,
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "node", *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=home, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, text: str, *, within: float = 20.0) -> None:
        """Read until the text appears."""
        end = time.monotonic() + within
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not appear; the terminal shows {self.shown!r}"
            self.shown += os.read(self._master, 4096).decode()

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Send what Ctrl-C sends, once the command waits: in the moment before, the interpreter would miss it."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        end = time.monotonic() + 20.0
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < end
            time.sleep(0.005)
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        return self.process.wait(timeout=20)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(timeout=20)
        os.close(self._master)


def test_a_conversation_at_a_terminal_remembers_its_turns(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Aye\x1b[2J"), DONE)})
    with Terminal("chat", "tiny", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("total ")
        assert "\x1b[2J" not in terminal.shown
        terminal.until("> ")
        terminal.type("two\n")
        terminal.until("total ")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    said = [turn["content"] for turn in server.heard[1].body["messages"]]
    assert said == ["one", "Aye\x1b[2J", "two"]


def test_ctrl_c_at_the_prompt_ends_without_a_traceback(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Aye"), DONE)})
    with Terminal("chat", "tiny", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        terminal.interrupt()
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.shown


def test_ctrl_c_in_an_answer_stops_it_and_goes_on(node: Start, tmp_path: Path) -> None:
    endless = threading.Event()
    server = node(**{CHAT: Said(events=(delta("Aye"),), headers=WHO, hold=endless)})
    with Terminal("chat", "tiny", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("Aye")
        terminal.interrupt()
        terminal.until("[stopped]")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
        endless.set()
    assert "Traceback" not in terminal.shown
