"""Prefix hashes of a conversation, as a chain: equal as far as two conversations are equal, message by message.

The n-th hash covers all before it too, so a chat that goes on has the hashes of its earlier requests among its own. Within
a long message there is one for every `BLOCK` as well: two questions about one document share the document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import orjson

from router.requests import Request

MAX_BYTES = 1024 * 1024
"""Longer bodies have no chain: reading them once more would cost more than a warm cache saves the router."""

MAX_LINKS = 256
"""Beginnings of one conversation that are looked at; what is beyond them changes nothing."""

BLOCK = 4096
"""Bytes of a message that have a hash of their own: about a thousand tokens, of which a worker reads again what is cut off."""

_EVERYBODYS = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Beginning:
    """One beginning: the hash of all up to there, how many bytes that is, and how many whole messages."""

    link: bytes
    size: int
    messages: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The beginnings of a conversation that are its own, ever longer; none for what is no conversation.

    What a whole service shares with all its chats, tools and what the system says, is no beginning of its own but counts in
    the others' sizes. `opening` is the place of the one that ends with the first words of a user.
    """

    own: tuple[Beginning, ...] = ()
    opening: int = 0
    messages: int = 0

    @property
    def size(self) -> int:
        """How many bytes were looked at."""
        return self.own[-1].size if self.own else 0

    @property
    def key(self) -> bytes:
        """What tells it from other conversations from its first request on, on every node alike."""
        return self.own[self.opening].link if self.own else b""


NONE = Conversation()


def conversation(request: Request) -> Conversation:
    """Read how a request's conversation begins."""
    if len(request.body) > MAX_BYTES or "json" not in request.content_type:
        return NONE
    said = orjson.loads(request.body)
    if not isinstance(said, dict):
        return NONE
    messages = said.get("messages")
    if messages is None and isinstance(said.get("prompt"), str):
        messages = [said["prompt"]]
    if not isinstance(messages, list) or not messages:
        return NONE
    shared = len([*takewhile(_is_everybodys, messages)])
    try:
        # A chat template puts the tools before everything else.
        seed = request.model.encode() + orjson.dumps(said.get("tools"))
        chain = [*_chain(seed, messages)]
    except orjson.JSONEncodeError:
        # It can be read, but is too deep to be written: no worker reads a conversation in it.
        return NONE
    # Where nobody but the system speaks, the last of it has to tell conversations apart.
    own = [b for place, b in chain if place >= shared] or [chain[-1][1]]
    opening = next((at for at, b in enumerate(own) if b.messages > shared), len(own) - 1)
    return Conversation(tuple(own), opening, len(messages))


def _chain(seed: bytes, messages: Sequence[object]) -> Iterator[tuple[int, Beginning]]:
    """Yield each beginning with the place of the message that it ends in."""
    link, size, links = blake2b(seed, digest_size=16).digest(), 0, 0
    for place, message in enumerate(messages):
        written = orjson.dumps(message)
        for at in range(0, len(written), BLOCK):
            block = written[at : at + BLOCK]
            link = blake2b(link + block, digest_size=16).digest()
            size += len(block)
            yield place, Beginning(link, size, place + (at + BLOCK >= len(written)))
            links += 1
            if links >= MAX_LINKS:
                return


def _is_everybodys(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in _EVERYBODYS
