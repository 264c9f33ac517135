"""How does a talk with a model go? Each turn is one streamed request that carries the turns before it."""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from node.cli.console.client import Client
from node.cli.console.text import note, plain, prose, say_json
from node.errors import CommandFailed
from router.sse import EventTooLarge, Splitter

# The node's own budgets end a slow answer; this only ends the wait for a node that is gone without a word.
SILENCE = 600.0
MAX_EVENT_BYTES = 4 * 1024 * 1024
_CHUNK = 64 * 1024


@dataclass(slots=True)
class Answer:
    """One answer: grows while it comes in. Times are seconds since the question was sent."""

    node: str = ""
    route: str = ""
    attempts: str = ""
    text: str = ""
    first_token: float = 0.0
    total: float = 0.0


@dataclass(slots=True)
class Conversation:
    """The turns so far, and whom they are with."""

    client: Client
    model: str
    project: str = ""
    system: str = ""
    max_tokens: int | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, prompt: str, answer: Answer) -> Iterator[str]:
        """Yield the pieces of the answer as they come and fill in `answer`; raise `CommandFailed`.

        Only a whole answer becomes part of the conversation.
        """
        question = {"role": "user", "content": prompt}
        began = time.perf_counter()
        with self.client.request(
            "POST", "/v1/chat/completions", self._body(question), headers=self._pin(), wait=SILENCE
        ) as stream:
            answer.node = stream.headers.get("x-modelvine-node", "")
            answer.route = stream.headers.get("x-modelvine-route", "")
            answer.attempts = stream.headers.get("x-modelvine-attempts", "")
            for piece in _pieces(stream):
                if not answer.text:
                    answer.first_token = time.perf_counter() - began
                answer.text += piece
                yield piece
        answer.total = time.perf_counter() - began
        self.turns += [question, {"role": "assistant", "content": answer.text}]

    def _body(self, question: dict[str, str]) -> dict[str, object]:
        told = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, object] = {
            "model": self.model,
            "messages": [*told, *self.turns, question],
            "stream": True,
        }
        return body if self.max_tokens is None else body | {"max_tokens": self.max_tokens}

    def _pin(self) -> dict[str, str]:
        return {"x-modelvine-project": self.project} if self.project else {}


def say_answer(conversation: Conversation, prompt: str, *, as_json: bool = False) -> None:
    """Print one answer as it comes, or all of it as JSON, and on standard error who gave it."""
    answer = Answer()
    for piece in conversation.ask(prompt, answer):
        if not as_json:
            # What is not shown in a terminal is passed on as it came.
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
    tries = "" if answer.attempts in ("", "1") else f" at attempt {answer.attempts}"
    note(
        plain(
            f"[{answer.node or 'an unnamed node'}, {answer.route or 'route unknown'}{tries}; "
            f"first token {answer.first_token:.2f} s, total {answer.total:.2f} s]"
        )
    )


def converse(conversation: Conversation) -> None:
    """Ask what is typed, line by line, until the end of input."""
    note("Ctrl-C stops an answer, Ctrl-D ends.")
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print()
            return
        if not prompt.strip():
            continue
        try:
            say_answer(conversation, prompt)
        except KeyboardInterrupt:
            print()
            note("[stopped]")
        except CommandFailed as error:
            print()
            note(plain(f"modelvine: {error}"))


def _pieces(stream: http.client.HTTPResponse) -> Iterator[str]:
    """Yield the text in a stream of chat chunks; raise `CommandFailed` unless it ends as it should."""
    splitter = Splitter(max_event_bytes=MAX_EVENT_BYTES)
    while True:
        try:
            chunk = stream.read1(_CHUNK)
            events = splitter.feed(chunk) if chunk else splitter.finish()
        except (OSError, http.client.HTTPException, EventTooLarge) as error:
            raise CommandFailed(f"the answer broke off: {error}") from error
        for event in events:
            if event.data == b"[DONE]":
                return
            if event.data:
                yield from _text(event.data)
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
        raise CommandFailed("the answer holds something that is no chat chunk") from error
