"""Conversation with a model, also at a terminal: each turn is one streamed request that carries the turns before it.

At a terminal there are commands that begin with a slash, and Ctrl-C stops an answer. If Python has `readline`, lines can be
edited, with a history in memory only: nothing is stored except by /save.
"""

import http.client
import json
import os
import select
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.cli.console.client import Client
from node.cli.console.text import note, plain, prose, say_json
from node.cli.console.worker_options import value_of
from node.errors import CommandFailed, NodeError, WrongUsage
from router.openai.media_type import type_of
from router.openai.sse import EventTooLarge, Splitter
from router.peers.headers import ATTEMPTS, NODE, PROJECT, ROUTE

INTERRUPTED = 130


def converse(conversation: "Conversation") -> int:
    """Send what is typed, line by line, until Ctrl-D, or Ctrl-C twice; return the exit code."""
    with suppress(ImportError):  # not every Python has it; without it the terminal edits lines
        import readline  # noqa: F401, PLC0415 - `input` edits lines once this is loaded
    talk = ChatSession(conversation)
    note("/help lists commands; Ctrl-C clears the line or stops an answer, Ctrl-D ends.")
    cleared = False
    while not talk.over:
        try:
            line = input("> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            if cleared:
                return INTERRUPTED
            note("Ctrl-C again, or Ctrl-D, ends.")
            cleared = True
            continue
        cleared = False
        talk.hear(line)
    return 0


class ChatSession:
    """Handler of typed lines."""

    def __init__(self, conversation: "Conversation") -> None:
        self.over = False
        self._conversation = conversation
        self._saved: set[str] = set()
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self._help, "this list"),
            "set": (self._set, "NAME VALUE: a parameter such as temperature; no VALUE: unset it; no NAME: list them"),
            "system": (self._system, "TEXT: system prompt; no TEXT: none"),
            "attach": (self._attach, "FILE: image to send with the next prompt"),
            "save": (self._save, "FILE: write the conversation to a new file, as a JSON request"),
            "clear": (self._clear, "forget the conversation so far"),
            "exit": (self._exit, "end the conversation, like Ctrl-D"),
        }  # fmt: skip

    def hear(self, line: str) -> None:
        """Run a command, or send a prompt to the model; print errors, and go on."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._obey(line)
            elif line.strip():
                say_answer(self._conversation, line.removeprefix("/"))
        except KeyboardInterrupt:
            print()
            note("[stopped]")
        except NodeError as error:
            if isinstance(error, CommandFailed):
                print()
            note(plain(f"modelvine: {error}"))

    def _obey(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise WrongUsage(
                f"there is no command /{name}: /help lists them, // begins a prompt with a slash"
            )
        self._commands[name][0](rest.strip())

    def _help(self, _: str) -> None:
        for name, (_command, description) in self._commands.items():
            note(f"  /{name:<7} {description}")

    def _set(self, text: str) -> None:
        parameters = self._conversation.parameters
        name, _, value = text.partition(" ")
        if value:
            parameters[name] = value_of(value.strip())
        elif name:
            parameters.pop(name, None)
        for key, setting in parameters.items():
            note(plain(f"  {key} = {json.dumps(setting, ensure_ascii=False)}"))
        if not parameters:
            note("  no parameters are set")

    def _system(self, text: str) -> None:
        self._conversation.system = text

    def _attach(self, file: str) -> None:
        self._conversation.attached.append(image(file))
        note(f"  {len(self._conversation.attached)} attached; sent with the next prompt")

    def _save(self, file: str) -> None:
        """Write a file that only the user can read; overwrite only files that this conversation has saved."""
        if not file:
            raise WrongUsage("/save needs a file name")
        flag = os.O_TRUNC if file in self._saved else os.O_EXCL
        content = json.dumps(self._conversation.body(), indent=2, ensure_ascii=False)
        try:
            with os.fdopen(
                os.open(Path(file).expanduser(), os.O_WRONLY | os.O_CREAT | flag, 0o600),
                "w",
                errors="replace",
            ) as out:
                out.write(f"{content}\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise WrongUsage(f"{file} cannot be written: {reason}") from error
        self._saved.add(file)
        note(plain(f"  saved {file}"))

    def _clear(self, _: str) -> None:
        self._conversation.turns.clear()
        self._conversation.attached.clear()

    def _exit(self, _: str) -> None:
        self.over = True


# The node's own time limits end a slow answer; this one only ends the wait for a node that has vanished.
SILENCE = 600.0
MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_IMAGE_BYTES = 20 * 1024 * 1024
PATIENCE = 3.0
"""Seconds without input after which a note tells that standard input is awaited."""

_CHUNK = 64 * 1024


@dataclass(slots=True)
class Turn:
    """One answer, which grows while it arrives. Times are seconds since the question was sent."""

    node: str = ""
    route: str = ""
    attempts: str = ""
    text: str = ""
    first_token: float = 0.0
    total: float = 0.0


@dataclass(slots=True)
class Conversation:
    """The turns so far, and the model and node that they are with; `attached` images go with the next question."""

    client: Client
    model: str
    project: str = ""
    node: str = ""
    system: str = ""
    parameters: dict[str, object] = field(default_factory=dict)
    attached: list[dict[str, object]] = field(default_factory=list)
    turns: list[dict[str, object]] = field(default_factory=list)

    def ask(self, prompt: str, answer: Turn) -> Iterator[str]:
        """Yield the pieces of the answer as they arrive, and fill in `answer`; raise `CommandFailed`.

        Only a complete answer becomes part of the conversation.
        """
        text = {"type": "text", "text": prompt}
        content = [text, *self.attached] if self.attached else prompt
        question: dict[str, object] = {"role": "user", "content": content}
        began = time.perf_counter()
        with self.client.request(
            "POST",
            "/v1/chat/completions",
            {**self.body(question), "stream": True},
            headers=self._pin(),
            wait=SILENCE,
        ) as stream:
            answer.node = stream.headers.get(NODE, "")
            answer.route = stream.headers.get(ROUTE, "")
            answer.attempts = stream.headers.get(ATTEMPTS, "")
            for piece in _pieces(stream):
                if not answer.text:
                    answer.first_token = time.perf_counter() - began
                answer.text += piece
                yield piece
        answer.total = time.perf_counter() - began
        self.turns += [question, {"role": "assistant", "content": answer.text}]
        self.attached.clear()

    def body(self, *more: dict[str, object]) -> dict[str, object]:
        """Return the request with the whole conversation, followed by further turns."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.turns, *more]
        return {**self.parameters, "model": self.model, "messages": messages}

    def _pin(self) -> dict[str, str]:
        headers = {PROJECT: self.project, NODE: self.node}
        return {name: value for name, value in headers.items() if value}


def say_answer(conversation: Conversation, prompt: str, *, as_json: bool = False) -> None:
    """Print one answer as it arrives, or all of it as JSON, and on standard error the node that gave it."""
    answer = Turn()
    for piece in conversation.ask(prompt, answer):
        if not as_json:
            # Output that is not shown in a terminal stays unchanged.
            sys.stdout.write(prose(piece) if sys.stdout.isatty() else piece)
            sys.stdout.flush()
    if as_json:
        say_json(
            {
                "model": conversation.model,
                "answer": answer.text,
                "node": answer.node,
                "route": answer.route,
                "attempts": answer.attempts,
                "first_token_seconds": round(answer.first_token, 4),
                "total_seconds": round(answer.total, 4),
            }
        )
        return
    print()
    attempts = "" if answer.attempts in ("", "1") else f" at attempt {answer.attempts}"
    note(
        plain(
            f"[{answer.node or 'an unnamed node'}, {answer.route or 'route unknown'}{attempts}; "
            f"first token {answer.first_token:.2f} s, total {answer.total:.2f} s]"
        )
    )


def image(file: str) -> dict[str, object]:
    """Return an image file as a part of a message; raise `WrongUsage`. Its type is detected from its first bytes."""
    path = Path(file).expanduser()
    try:
        if not path.is_file():
            raise WrongUsage(f"{file} is no file")
        with path.open("rb") as stream:
            content = stream.read(MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise WrongUsage(f"{file} cannot be read: {error}") from error
    if len(content) > MAX_IMAGE_BYTES:
        raise WrongUsage(f"{file} is larger than {MAX_IMAGE_BYTES // 1024 // 1024} MiB")
    kind = type_of(content)
    if not kind.is_image:
        raise WrongUsage(f"{file} is not a PNG, JPEG, GIF or WebP image")
    url = f"data:{kind.media};base64,{b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def standard_input() -> str:
    """Return all that is piped or typed in; raise `WrongUsage` if it is not text."""
    # Some parent processes never close the pipe; without this note the user would not know why the command waits.
    with suppress(OSError, ValueError):
        if not select.select([sys.stdin], [], [], PATIENCE)[0]:
            note("waiting for standard input to end; add `< /dev/null` if there is none")
    try:
        text = sys.stdin.read()
        text.encode()  # some locales decode invalid bytes as surrogates
    except UnicodeError as error:
        raise WrongUsage("standard input is not text; send images with --attach FILE") from error
    return text


def _pieces(stream: http.client.HTTPResponse) -> Iterator[str]:
    """Yield the text in a stream of chat chunks; raise `CommandFailed` unless it ends with `[DONE]`."""
    splitter = Splitter(max_event_bytes=MAX_EVENT_BYTES)
    done = False
    while True:
        try:
            chunk = stream.read1(_CHUNK)
            events = splitter.feed(chunk) if chunk else splitter.finish()
        except (OSError, http.client.HTTPException, EventTooLarge) as error:
            if done:
                return
            raise CommandFailed(f"the answer broke off: {error}") from error
        for event in events:
            # Read on to the last chunk: to the node, a caller that disconnects here has left early.
            done = done or event.data == b"[DONE]"
            if event.data and not done:
                yield from _text(event.data)
        if not chunk and done:
            return
        if not chunk:
            raise CommandFailed("the answer broke off before its end")


def _text(data: bytes) -> Iterator[str]:
    try:
        chunk: Any = json.loads(data)
        if "error" in chunk:
            raise CommandFailed(f"the answer broke off: {chunk['error']['message']}")
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content")
            if isinstance(piece, str) and piece:
                yield piece
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed("the answer contains an invalid chunk") from error
