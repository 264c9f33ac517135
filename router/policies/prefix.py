"""A conversation returns to the machine that has read its beginning, unless that machine is much busier than the others.

Its cache still holds what was said before, so the answer begins sooner. Whoever has read most of it comes first, of several
the idler; tools and the system's words, which all chats of a service share, draw nobody. A new conversation goes where
rendezvous hashing of its session or its first words sends it, on every node alike. Bounded by load: a machine with far more
than its share, or without a free slot while another has one, is passed over (`router.select.weights`).

Prefix hashes of a conversation, as a chain: equal as far as two conversations are equal, message by message.

The n-th hash covers all before it too, so a chat that goes on has the hashes of its earlier requests among its own. Within
a long message there is one for every `BLOCK` as well: two questions about one document share the document.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import orjson

from registry.clock import Chance
from registry.records import PeerId, Service
from router.policies import Policy
from router.policies.p2c import FewChoices, load_of
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import crowded, rendezvous, with_room_first

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
class Prefixes:
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


NONE = Prefixes()


def conversation(request: Request) -> Prefixes:
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
    return Prefixes(tuple(own), opening, len(messages))


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


MAX_BEGINNINGS = 65_536
"""Beginnings whose readers are remembered, about 200 bytes each; the one that was used longest ago makes room."""

MAX_UNDECIDED = 4_096
"""Requests whose beginnings are kept until somebody answers them."""

MAX_READERS = 4
"""Machines remembered for one beginning: those that read it last."""

_Key = tuple[PeerId, Service]
_NOTHING = Beginning(b"", 0, 0)


class Prefix(Policy):
    """Remembers who read which beginning."""

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[_Key, ...]] = {}
        self._undecided: dict[str, tuple[Beginning, ...]] = {}
        self._last: tuple[tuple[str, int], Prefixes] = (("", 0), NONE)
        self._otherwise = FewChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates, whoever has read most of the conversation first unless it is too busy."""
        talk = self._read(request)
        if not talk.own:
            return self._otherwise.order(request, candidates, random)
        # A name that the caller gave holds chats together that begin unlike.
        key = request.session.encode() or talk.key
        return with_room_first(request, self._preferred(request, talk, key, candidates))

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        """Say how much of the conversation it has read, and whether it has room for it."""
        talk = self._read(request)
        if not talk.own:
            return self._otherwise.why(request, candidate, among)
        read = self._read_by(talk).get(candidate.key)
        said = "by the hash of its session" if request.session else "by the hash of its first words"
        if read is not None:
            said = (
                f"it has read {read.messages} of this conversation's {talk.messages} messages, "
                f"{read.size:,} of {talk.size:,} bytes"
            )
        if candidate.key in crowded(request, among):
            said += ", but it has more than its share"
        return f"{said}: {load_of(candidate)}"

    def figures(
        self,
        request: Request,
        candidate: Candidate,
        among: Sequence[Candidate],  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return how much of the conversation it has read."""
        talk = self._read(request)
        read = self._read_by(talk).get(candidate.key, _NOTHING)
        return {
            "messages": talk.messages,
            "messages_read": read.messages,
            "bytes": talk.size,
            "bytes_read": read.size,
        }

    def begun(self, request: Request) -> None:
        """Keep the conversation's beginnings until somebody answers."""
        if len(self._undecided) >= MAX_UNDECIDED:
            del self._undecided[next(iter(self._undecided))]
        self._undecided[request.id] = self._read(request).own

    def answered(self, request: Request, candidate: Candidate) -> None:
        """Remember who has read this conversation."""
        for beginning in self._undecided.pop(request.id, ()):
            before = self._readers.pop(beginning.link, ())
            if len(self._readers) >= MAX_BEGINNINGS:
                del self._readers[next(iter(self._readers))]
            others = [key for key in before if key != candidate.key]
            self._readers[beginning.link] = (candidate.key, *others[: MAX_READERS - 1])

    def _read(self, request: Request) -> Prefixes:
        """Read a conversation, once however often it is looked at in a row; what was said is not kept."""
        mark = request.model, hash(request.body)
        if self._last[0] != mark:
            self._last = mark, conversation(request)
        return self._last[1]

    def _preferred(
        self, request: Request, talk: Prefixes, key: bytes, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        read = self._read_by(talk)

        def place(candidate: Candidate) -> tuple[int, float]:
            # Of those that have read nothing the hash decides: it is all that other nodes know too.
            found = read.get(candidate.key)
            return (-found.size, candidate.expected) if found else (0, 0.0)

        return sorted(rendezvous(request, key, candidates), key=place)

    def _read_by(self, talk: Prefixes) -> Mapping[_Key, Beginning]:
        """Return the longest beginning that each machine has read, as far as it is worth going there for it."""
        found: dict[_Key, Beginning] = {}
        for place, beginning in enumerate(talk.own):
            # Less than half of one's first words is more likely a form that many fill in than a conversation.
            if place < talk.opening and 2 * beginning.size < talk.size:
                continue
            for key in self._readers.get(beginning.link, ()):
                found[key] = beginning
        return found


def create() -> Prefix:
    """Make the policy."""
    return Prefix()
