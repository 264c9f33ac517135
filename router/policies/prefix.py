"""A conversation returns to the machine that has read its beginning, unless that machine is much busier than the others.

Its cache still holds what was said before, so the answer begins sooner. Of all earlier requests the one with the longest common
beginning counts; a new conversation goes where rendezvous hashing of its first two messages sends it, on every node alike.
Bounded by load: a machine with far more than its share is passed over (`router.weights`).
"""

from collections.abc import Sequence

from registry.records import PeerId, Service
from router.candidates import Candidate
from router.policies import Chance, Policy
from router.policies.p2c import TwoChoices, load_of
from router.prefixes import chain
from router.requests import Request
from router.weights import rendezvous, with_room_first

MAX_BEGINNINGS = 65_536
"""Beginnings whose machine is remembered, about 200 bytes each; the one that was used longest ago makes room."""

MAX_UNDECIDED = 4_096
"""Requests whose chain is kept until somebody answers them."""

_OPENING = (
    2  # messages: mostly the system's, which many conversations share, and the first of the user
)


class Prefix(Policy):
    """Remembers who read which beginning."""

    def __init__(self) -> None:
        self._read: dict[bytes, tuple[PeerId, Service]] = {}
        self._undecided: dict[str, tuple[bytes, ...]] = {}
        self._otherwise = TwoChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates, whoever has the warm cache first unless it is too busy."""
        links = _links(request)
        if not links:
            return self._otherwise.order(request, candidates, random)
        preferred = rendezvous(links[0], candidates)
        if (warm := self._warm(links)) is not None:
            preferred.sort(key=lambda c: c.key != warm)
        return with_room_first(preferred)

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        """Say whether its cache is warm."""
        links = _links(request)
        if not links:
            return self._otherwise.why(request, candidate, among)
        if self._warm(links) == candidate.key:
            return f"it has read this conversation's beginning: {load_of(candidate)}"
        return f"by the hash of the conversation's beginning: {load_of(candidate)}"

    def begun(self, request: Request) -> None:
        """Keep the conversation's chain until somebody answers."""
        if len(self._undecided) >= MAX_UNDECIDED:
            del self._undecided[next(iter(self._undecided))]
        self._undecided[request.id] = _links(request)

    def answered(self, request: Request, candidate: Candidate) -> None:
        """Remember who has read this conversation."""
        for link in self._undecided.pop(request.id, ()):
            self._read.pop(link, None)
            if len(self._read) >= MAX_BEGINNINGS:
                del self._read[next(iter(self._read))]
            self._read[link] = candidate.key

    def _warm(self, links: Sequence[bytes]) -> tuple[PeerId, Service] | None:
        return next((self._read[link] for link in reversed(links) if link in self._read), None)


def _links(request: Request) -> tuple[bytes, ...]:
    # What many conversations share, mostly the system's message, would send them all to one machine.
    links = chain(request)
    return links[min(_OPENING, len(links)) - 1 :] if links else ()


def create() -> Prefix:
    """Make the policy."""
    return Prefix()
