"""A conversation returns to the machine that has read its beginning, unless that machine is much busier than the others.

Its cache still holds what was said before, so the answer begins sooner. Whoever has read most of it comes first, of several
the idler; tools and the system's words, which all chats of a service share, draw nobody. A new conversation goes where
rendezvous hashing of its session or its first words sends it, on every node alike. Bounded by load: a machine with far more
than its share, or without a free slot while another has one, is passed over (`router.select.weights`).
"""

from collections.abc import Mapping, Sequence

from registry.records import PeerId, Service
from router.policies import Chance, Policy
from router.policies.p2c import TwoChoices, load_of
from router.requests import Request
from router.select.candidates import Candidate
from router.select.prefixes import NONE, Beginning, Conversation, conversation
from router.select.weights import crowded, rendezvous, with_room_first

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
        self._last: tuple[tuple[str, int], Conversation] = (("", 0), NONE)
        self._otherwise = TwoChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates, whoever has read most of the conversation first unless it is too busy."""
        talk = self._read(request)
        if not talk.own:
            return self._otherwise.order(request, candidates, random)
        # A name that the caller gave holds chats together that begin unlike.
        key = request.session.encode() or talk.key
        return with_room_first(self._preferred(talk, key, candidates))

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
        if candidate.key in crowded(among):
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

    def _read(self, request: Request) -> Conversation:
        """Read a conversation, once however often it is looked at in a row; what was said is not kept."""
        mark = request.model, hash(request.body)
        if self._last[0] != mark:
            self._last = mark, conversation(request)
        return self._last[1]

    def _preferred(
        self, talk: Conversation, key: bytes, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        read = self._read_by(talk)

        def place(candidate: Candidate) -> tuple[int, float]:
            # Of those that have read nothing the hash decides: it is all that other nodes know too.
            found = read.get(candidate.key)
            return (-found.size, candidate.expected) if found else (0, 0.0)

        return sorted(rendezvous(key, candidates), key=place)

    def _read_by(self, talk: Conversation) -> Mapping[_Key, Beginning]:
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
