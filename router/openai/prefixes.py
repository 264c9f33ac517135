"""Prefix hashes of a conversation, as a chain: equal as far as two conversations are equal, message by message.

The n-th hash covers all before it too, so a chat that goes on has the hashes of its earlier requests among its own. Within
a long message there is one for every `BLOCK` as well: two questions about one document share the document.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile

import orjson

from registry.values import value_class

MIN_BYTES = 1024
"""Shorter bodies have no chain: a worker reads them anew in no time."""

MAX_BYTES = 1024 * 1024
"""Longer bodies have no chain: reading them once more would cost more than a warm cache saves the router."""

MAX_LINKS = 256
"""Prefixes of one conversation that are looked at; what is beyond them changes nothing."""

BLOCK = 4096
"""Bytes of a message that have a hash of their own: about a thousand tokens, of which a worker reads again what is cut off."""

_EVERYBODYS = frozenset({"system", "developer"})


@value_class
class Prefix:
    """One beginning of a conversation: the hash of all up to there, and how many bytes that is."""

    digest: bytes
    size: int


@value_class
class Prefixes:
    """The beginnings of a conversation, ever longer; none for what is no conversation.

    The first `shared` of them are what a service says to all its chats, tools and the system's words. `opening` is the place of
    the one that ends with the first words of a user. `goes_on` says that somebody has answered before.
    """

    chain: tuple[Prefix, ...] = ()
    shared: int = 0
    opening: int = 0
    goes_on: bool = False

    @property
    def size(self) -> int:
        """How many bytes were looked at."""
        return self.chain[-1].size if self.chain else 0

    @property
    def key(self) -> bytes:
        """What tells it from other conversations from its first request on, on every node alike."""
        return self.chain[self.opening].digest if self.chain else b""


NONE = Prefixes()


def prefixes_of(fields: Mapping[str, object], size: int) -> Prefixes:
    """Read how the conversation of a request begins, whose body has these fields and so many bytes."""
    messages = fields.get("messages")
    if messages is None and isinstance(fields.get("prompt"), str):
        messages = [fields["prompt"]]
    readable = MIN_BYTES <= size <= MAX_BYTES
    if not readable or not isinstance(messages, list) or not messages:
        return NONE
    spoken = len([*takewhile(_is_everybodys, messages)])
    try:
        # A chat template puts the tools before everything else.
        found = [*_chain(orjson.dumps(fields.get("tools")), messages)]
    except orjson.JSONEncodeError:
        # It can be read, but is too deep to be written: no worker reads a conversation in it.
        return NONE
    # Where nobody but the system speaks, the last of it has to tell conversations apart.
    shared = min(sum(place < spoken for place, _, _ in found), len(found) - 1)
    ends = (at for at, (place, whole, _) in enumerate(found) if whole and place >= spoken)
    return Prefixes(
        tuple(prefix for _, _, prefix in found),
        shared,
        next(ends, len(found) - 1),
        any(isinstance(said, dict) and said.get("role") == "assistant" for said in messages),
    )


def _chain(seed: bytes, messages: Sequence[object]) -> Iterator[tuple[int, bool, Prefix]]:
    """Yield each prefix with the place of the message that it ends in, and whether it ends with it."""
    digest, size, links = blake2b(seed, digest_size=16).digest(), 0, 0
    for place, message in enumerate(messages):
        written = orjson.dumps(message)
        for at in range(0, len(written), BLOCK):
            block = written[at : at + BLOCK]
            digest = blake2b(digest + block, digest_size=16).digest()
            size += len(block)
            yield place, at + BLOCK >= len(written), Prefix(digest, size)
            links += 1
            if links >= MAX_LINKS:
                return


def _is_everybodys(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in _EVERYBODYS
