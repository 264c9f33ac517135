"""A caller's session stays with one machine: requests with the same `x-modelvine-session` go to the same candidate.

Rendezvous hashing by slots: every node comes to the same choice without a word between them, and when a machine comes or
goes only its own sessions move. A machine with far more than its share is passed over. Without the header: power of two
choices.
"""

from collections.abc import Sequence

from router.candidates import Candidate
from router.policies import Chance, Policy
from router.policies.p2c import TwoChoices
from router.requests import Request
from router.weights import rendezvous, with_room_first


class Session(Policy):
    """Remembers nothing, and comes to the same choice each time."""

    def __init__(self) -> None:
        self._without = TwoChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates by how high they score for this session."""
        if not request.session:
            return self._without.order(request, candidates, random)
        return with_room_first(rendezvous(request.session.encode(), candidates))

    def why(self, request: Request, candidate: Candidate) -> str:
        """Say whether it was the session."""
        return (
            "its session lives there" if request.session else self._without.why(request, candidate)
        )


def create() -> Session:
    """Make the policy."""
    return Session()
