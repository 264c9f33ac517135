import io
import json
import os
import pty
import select
import stat
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.cli.console.conversation import MAX_IMAGE_BYTES
from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import PEER, Said, StandIn, delta

Start = Callable[..., StandIn]

CHAT = "POST_/v1/chat/completions"
ROOT = Path(__file__).parents[3]
DONE = b"data: [DONE]\n\n"
WHO = {"x-modelvine-node": PEER, "x-modelvine-route": "direct", "x-modelvine-attempts": "1"}


def streamed(*events: bytes, cut: bool = False) -> Said:
    return Said(events=events, headers=WHO, cut=cut)


def test_the_answer_goes_to_standard_output_and_the_node_behind_it_to_standard_error(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{CHAT: streamed(delta("Hello"), delta(", you"), DONE)})
    ended = modelvine(
        "chat", "tiny", "Hi", "--system", "Be brief", "--project", "demo", "--max-tokens", "9"
    )
    assert (ended.code, ended.out) == (0, "Hello, you\n")
    assert ended.err.startswith(f"[{PEER}, direct; first token 0.")
    request = server.heard[0]
    assert request.headers["x-modelvine-project"] == "demo"
    assert request.body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "max_tokens": 9,
    }


def test_an_answer_with_json_is_one_object(modelvine: Modelvine, node: Start) -> None:
    node(**{CHAT: streamed(delta("Hello"), DONE)})
    payload = json.loads(modelvine("chat", "tiny", "Hi", "--json").out)
    assert (payload["answer"], payload["node"], payload["route"]) == ("Hello", PEER, "direct")
    assert 0 < payload["first_token_seconds"] <= payload["total_seconds"]


def test_the_prompt_is_read_from_standard_input_when_none_is_given(
    modelvine: Modelvine, node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node(**{CHAT: streamed(delta("Yes"), DONE)})
    monkeypatch.setattr(sys, "stdin", io.StringIO("Is this a file?\n"))
    assert modelvine("chat", "tiny").out == "Yes\n"
    assert server.heard[0].body["messages"][0]["content"] == "Is this a file?\n"


def test_an_empty_prompt_is_wrong_usage(
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
        (streamed(b"data: nonsense\n\n"), "an invalid chunk"),
        (streamed(b"data: [1]\n\n"), "an invalid chunk"),
        (streamed(b'data: {"choices": 7}\n\n'), "an invalid chunk"),
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


def test_an_unknown_model_is_reported_with_the_nearest_names(
    modelvine: Modelvine, node: Start
) -> None:
    payload = {"code": 1017, "message": "no node serves the model 'tini'; did you mean tiny?"}
    node(**{CHAT: Said(payload, status=404)})
    ended = modelvine("chat", "tini", "Hi")
    assert (ended.code, "did you mean tiny?" in ended.err) == (1, True)


def test_parameters_go_into_the_request_by_their_names(modelvine: Modelvine, node: Start) -> None:
    server = node(**{CHAT: streamed(delta("Hello"), DONE)})
    modelvine(
        "chat", "tiny", "--temperature", "0", "--top-p=0.5", "--max-tokens", "9", "Hi", "--seed", "7", "--stop", "a",
        "--stop", "b", "--frequency-penalty=-1", "--presence-penalty", "0.5", "--set", "top_k=3", "--set", "user=me",
    )  # fmt: skip
    body = server.heard[0].body
    assert {name: body[name] for name in body if name not in ("model", "messages", "stream")} == {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 9,
        "seed": 7,
        "stop": ["a", "b"],
        "frequency_penalty": -1,
        "presence_penalty": 0.5,
        "top_k": 3,
        "user": "me",
    }


@pytest.mark.parametrize("words", [("--temperature", "hot"), ("--top-p", "nan"), ("--set", "x")])
def test_an_invalid_parameter_is_wrong_usage(modelvine: Modelvine, words: tuple[str, str]) -> None:
    assert modelvine("chat", "tiny", "Hi", *words).code == 2


def test_a_prompt_and_standard_input_are_sent_together(
    modelvine: Modelvine, node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node(**{CHAT: streamed(delta("Yes"), DONE)})
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    assert modelvine("chat", "tiny", "Summarise").out == "Yes\n"
    assert server.heard[0].body["messages"][0]["content"] == "Summarise\n\na\nb\n"


def piped(
    node: str, home: Path, *arguments: str, **streams: Any
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "node", "chat", "tiny", *arguments],
        env={**os.environ, "MODELVINE_NODE": node, "PYTHONPATH": str(ROOT), "HOME": str(home)},
        cwd=home,
        capture_output=True,
        timeout=30,
        check=False,
        **streams,
    )


def test_binary_data_on_standard_input_is_refused(node: Start, tmp_path: Path) -> None:
    server = node()
    ended = piped(server.url, tmp_path, "What is it?", input=b"\x89PNG\r\n\x1a\n\xff")
    assert ended.returncode == 2
    assert b"--attach FILE" in ended.stderr
    assert not server.heard


def test_a_prompt_is_sent_where_standard_input_is_closed(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Yes"), DONE)})
    command = [
        "bash",
        "-c",
        'exec "$@" <&-',
        "sh",
        sys.executable,
        "-m",
        "node",
        "chat",
        "tiny",
        "Hi",
    ]
    environment = {**os.environ, "MODELVINE_NODE": server.url, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, b"Yes\n"), ended.stderr


def test_chat_says_that_it_waits_for_standard_input(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Yes"), DONE)})
    silent, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "node", "chat", "tiny", "Hi"],
        env={**os.environ, "MODELVINE_NODE": server.url, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdin=silent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert b"waiting for standard input" in process.stderr.readline()
        os.close(writer)
        assert process.wait(timeout=30) == 0
    os.close(silent)
    assert server.heard[0].body["messages"][0]["content"] == "Hi"


def test_an_answer_is_read_to_its_very_end(modelvine: Modelvine, node: Start) -> None:
    # Otherwise the node sees that the caller left, and counts the request as given up.
    end = threading.Event()
    node(**{CHAT: Said(events=(delta("Yes"), DONE), headers=WHO, hold=end)})
    later = threading.Timer(1.0, end.set)
    later.start()
    assert modelvine("chat", "tiny", "Hi").out == "Yes\n"
    assert end.is_set()
    later.join()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def test_an_image_goes_with_the_prompt(modelvine: Modelvine, node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("A cat"), DONE)})
    (tmp_path / "cat.txt").write_bytes(PNG)
    assert modelvine("chat", "tiny", "--attach", "cat.txt", "What is it?").out == "A cat\n"
    url = f"data:image/png;base64,{b64encode(PNG).decode()}"
    assert server.heard[0].body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": url}},
            ],
        }
    ]


@pytest.mark.parametrize("name", ["absent.png", ".", "pipe", "text.png", "huge.png", "nul\0.png"])
def test_a_file_that_is_no_image_is_refused_before_anything_is_sent(
    modelvine: Modelvine, node: Start, tmp_path: Path, name: str
) -> None:
    server = node(**{CHAT: streamed(delta("A cat"), DONE)})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.png").write_text("no picture")
    with (tmp_path / "huge.png").open("wb") as file:
        file.write(PNG)
        file.truncate(MAX_IMAGE_BYTES + 1)
    ended = modelvine("chat", "tiny", "Hi", "--attach", name)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert not server.heard


ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
WITHOUT_READLINE = "import sys; sys.modules['readline'] = None; from node.cli import main; sys.exit(main(sys.argv[1:]))"


class Terminal:
    """A command at a real pseudo-terminal that is its own, so that Ctrl-C is a key."""

    def __init__(self, *arguments: str, node: str, home: Path, readline: bool = True) -> None:
        self._master, slave = pty.openpty()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "xterm",
            "MODELVINE_NODE": node,
            "PYTHONPATH": str(ROOT),
        }
        command = ["-m", "node"] if readline else ["-c", WITHOUT_READLINE]
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *command, *arguments],
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
        """Press Ctrl-C once the command waits: a moment earlier, the interpreter would miss it."""
        state = Path(f"/proc/{self.process.pid}/stat")
        end = time.monotonic() + 20.0
        while state.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < end
            time.sleep(0.005)
        self.type("\x03")

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
    contents = [message["content"] for message in server.heard[1].body["messages"]]
    assert contents == ["one", "Aye\x1b[2J", "two"]


def test_arrow_keys_edit_the_line_and_recall_earlier_ones(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Aye"), DONE)})
    left, up = "\x1b[D", "\x1b[A"
    with Terminal("chat", "tiny", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        for line in (f"heo{left}ll\n", f"{up} again\n"):
            terminal.type(line)
            terminal.until("total ")
            terminal.until("> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    prompts = [request.body["messages"][-1]["content"] for request in server.heard]
    assert prompts == ["hello", "hello again"]
    # Typed lines are not written to any file.
    assert list(tmp_path.rglob("*")) == []


def test_lines_are_read_without_readline_too(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Aye"), DONE)})
    with Terminal("chat", "tiny", node=server.url, home=tmp_path, readline=False) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("total ")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    assert server.heard[0].body["messages"][-1]["content"] == "one"


def test_ctrl_c_clears_the_line_and_pressed_twice_ends_the_conversation(
    node: Start, tmp_path: Path
) -> None:
    server = node(**{CHAT: streamed(delta("Aye"), DONE)})
    with Terminal("chat", "tiny", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        terminal.type("nonsense")
        terminal.until("nonsense")
        terminal.interrupt()
        terminal.until("Ctrl-C again")
        terminal.until("> ")
        terminal.type("sense\n")
        terminal.until("total ")
        terminal.until("> ")
        terminal.interrupt()
        terminal.until("Ctrl-C again")
        terminal.until("> ")
        terminal.interrupt()
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.shown
    (request,) = server.heard
    assert request.body["messages"][-1]["content"] == "sense"


def test_commands_of_a_conversation_change_what_is_asked(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("Aye"), DONE)})
    (tmp_path / "cat.png").write_bytes(PNG)
    with Terminal("chat", "tiny", "--seed", "7", node=server.url, home=tmp_path) as terminal:
        terminal.until("> ")
        for line, output in (
            ("/help", "/save"),
            ("/set temperature 0.5", "temperature = 0.5"),
            ('/set stop ["x"]', 'stop = ["x"]'),
            ("/set seed", "temperature"),
            ("/system Be brief", "> "),
            ("/attach cat.png", "1 attached"),
            ("/attach nothing.png", "nothing.png is no file"),
            ("/nonsense", "there is no command /nonsense"),
            ("//one", "total "),
            ("/save talk.json", "saved talk.json"),
            ("/save cat.png", "cat.png cannot be written"),
            ("/clear", "> "),
            ("/system", "> "),
            ("two", "total "),
            ("/save talk2.json", "saved talk2.json"),
            ("/save talk2.json", "saved talk2.json"),
        ):
            terminal.type(f"{line}\n")
            terminal.until(output)
            terminal.until("> ")
        terminal.type("/exit\n")
        assert terminal.ended() == 0
    assert (tmp_path / "cat.png").read_bytes() == PNG
    one, two = (request.body for request in server.heard)
    assert (one["temperature"], one["stop"], "seed" in one) == (0.5, ["x"], False)
    assert one["messages"][0] == {"role": "system", "content": "Be brief"}
    assert [part["type"] for part in one["messages"][1]["content"]] == ["text", "image_url"]
    assert one["messages"][1]["content"][0]["text"] == "/one"
    assert two["messages"] == [{"role": "user", "content": "two"}]
    saved = json.loads((tmp_path / "talk.json").read_text())
    answer = {"role": "assistant", "content": "Aye"}
    assert saved["messages"] == [*one["messages"], answer]
    assert (saved["model"], saved["temperature"]) == ("tiny", 0.5)
    assert json.loads((tmp_path / "talk2.json").read_text())["messages"] == [
        *two["messages"],
        answer,
    ]
    assert stat.S_IMODE((tmp_path / "talk.json").stat().st_mode) == 0o600


def test_bidirectional_controls_are_not_shown_at_a_terminal(node: Start, tmp_path: Path) -> None:
    server = node(**{CHAT: streamed(delta("safe\u202etxt.exe\u2066"), DONE)})
    with Terminal("chat", "tiny", "Hi", node=server.url, home=tmp_path) as terminal:
        terminal.until("total ")
    assert "safe\ufffdtxt.exe\ufffd" in terminal.shown


def test_ctrl_c_during_an_answer_stops_it_and_the_conversation_goes_on(
    node: Start, tmp_path: Path
) -> None:
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
