"""Conversations of simulated callers: chats that arrive independently, and agents whose turns wait for the previous answer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

import orjson

from router.openai.prefixes import Prefix, Prefixes
from router.requests import Kind, Request

READING = 0.02
"""Seconds of reading for each kilobyte of a request, at speed 1."""

SHARED_BYTES = 8_000
"""Bytes that all agents' conversations begin with: tools and the system prompt."""

_TURNS = 6
_TURN_BYTES = 400
_TURNS_OF_AGENTS = 10
_SAID_BYTES = 3_000  # of a tool or a person, with the previous answer
_TELLING = 0.5  # seconds of an answer after the prompt is read
_TOOLS = 0.7  # the share of turns that come from a tool, after about a second; those of a person take twenty


@dataclass(slots=True)
class Talk:
    """Growing conversation of an agent."""

    name: str
    random: Random
    left: int
    chain: list[Prefix] = field(default_factory=list)
    said: int = 0

    @property
    def size(self) -> int:
        """Bytes of the conversation so far."""
        return self.chain[-1].size

    def turn(self) -> tuple[Request, float]:
        """Return the next request, and the seconds that its answer takes."""
        if not self.chain:
            self.chain = [Prefix(b"system", SHARED_BYTES)]
        # The previous answer, and the reply of a tool or a person.
        size = self.size + int(self.random.lognormvariate(math.log(_SAID_BYTES) - 0.5, 1.0)) + 200
        self.said += 1
        self.left -= 1
        self.chain.append(Prefix(f"{self.name}:{self.said}".encode(), size))
        prefixes = Prefixes(tuple(self.chain), 1, 1, self.said > 1)
        name = f"{self.name}:{self.said}"
        request = Request(
            name, Kind.CHAT, "m", bytes(size), prefixes=prefixes, content_type="application/json"
        )
        return request, self.random.lognormvariate(math.log(_TELLING) - 0.5, 1.0)


class Agents:
    """Conversations of agents: tools reply soon, people later, and each turn waits for the previous answer."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = count()
        # Seconds of a conversation if each turn hits the cache.
        self.seconds = _TURNS_OF_AGENTS * (_TELLING + READING * _SAID_BYTES / 1_000)

    def begin(self) -> Talk:
        """Return a new conversation."""
        turns = 1 + int(self._random.expovariate(1 / (_TURNS_OF_AGENTS - 0.5)))
        return Talk(f"t{next(self._number)}", self._random, turns)

    def gap(self, talk: Talk) -> float:
        """Return the seconds until the next turn, 0 after the last."""
        if not talk.left:
            return 0.0
        usual = 1.0 if self._random.random() < _TOOLS else 20.0
        return self._random.lognormvariate(math.log(usual), 1.0)


class Chats(Iterator[Request]):
    """Chats of some turns each, many at a time; a fifth of them are about a document, if there is one."""

    _DOCUMENTS = 0.2

    def __init__(self, random: Random, document: int) -> None:
        self._random = random
        self._document = document
        self._talks: dict[int, list[dict[str, str]]] = {}
        self._number = count()
        turns = _TURN_BYTES * 2 * (_TURNS - 1) / 2
        self.mean_bytes = turns + document * self._DOCUMENTS + 200

    def __next__(self) -> Request:
        if len(self._talks) < 200 or self._random.random() < 1 / _TURNS:
            self._talks[next(self._number)] = [{"role": "system", "content": "be brief"}]
        talk = self._random.choice(list(self._talks))
        messages = self._talks[talk]
        text = f"{talk}:{len(messages)} ".ljust(_TURN_BYTES, "x")
        if len(messages) == 1 and self._document and self._random.random() < self._DOCUMENTS:
            text = text.ljust(self._document, "x")
        messages.append({"role": "user", "content": text})
        body = orjson.dumps({"model": "m", "messages": messages})
        messages.append({"role": "assistant", "content": text[:_TURN_BYTES]})
        if len(messages) > 2 * _TURNS:
            del self._talks[talk]
        name = f"r{next(self._number)}"
        return Request(name, Kind.CHAT, "m", body, "application/json", session=str(talk))
