"""Session affinity: requests with the same `x-modelvine-session` header, or `prompt_cache_key`, go to one machine.

Rendezvous hashing by slots: all nodes make the same choice without communication, and when a machine comes or goes
only its own sessions move. A machine with far more than its share is passed over. Without a session: power of few
choices.
"""

from collections.abc import Mapping, Sequence

from registry.clock import RandomSource
from router.policies.p2c import FewChoices, load_of
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import Policy
from router.select.rendezvous import order_by_key
from router.select.weights import crowded_candidates, forecasts, with_room_first


class Session(Policy):
    """Policy without state, which makes the same choice each time."""

    def __init__(self) -> None:
        self._without_session = FewChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        """Return the candidates by their score for this session."""
        if not request.session:
            return self._without_session.order(request, candidates, random)
        return with_room_first(request, _ring(request, candidates))

    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:
        """Say whether it is the session's machine, and whether that is above its share."""
        if not request.session:
            return self._without_session.why(request, candidate, candidates)
        home = _ring(request, candidates)[0]
        if candidate.key != home.key:
            return f"after the session's machine: {load_of(candidate)}"
        if home.key in crowded_candidates(request, candidates):
            return f"the session's machine, but above its share: {load_of(candidate)}"
        return f"the session's machine: {load_of(candidate)}"

    def figures(
        self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]
    ) -> Mapping[str, float]:
        """Return its place in the order that the session gives, 0 for its home."""
        if not request.session:
            return {}
        ring = [c.key for c in _ring(request, candidates)]
        return {"place": ring.index(candidate.key)}


def _ring(request: Request, candidates: Sequence[Candidate]) -> list[Candidate]:
    parts = [expected.part for expected in forecasts(request, candidates)]
    return [
        candidates[index] for index in order_by_key(request.session.encode(), candidates, parts)
    ]


def create() -> Session:
    """Make the policy."""
    return Session()
