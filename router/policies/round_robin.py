"""Round robin, whatever the load: for equal workers and equal requests."""

from collections.abc import Sequence

from registry.clock import RandomSource
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import Policy


class RoundRobin(Policy):
    """Policy that begins one candidate further each time."""

    def __init__(self) -> None:
        self._count = 0

    def order(
        self,
        request: Request,  # noqa: ARG002 (everybody in turn)
        candidates: Sequence[Candidate],
        random: RandomSource,  # noqa: ARG002
    ) -> Sequence[Candidate]:
        """Return the candidates in a fixed order, beginning one further than the last time."""
        ring = sorted(candidates, key=lambda c: c.key)
        start = self._count % len(ring) if ring else 0
        return ring[start:] + ring[:start]

    def begun(self, request: Request) -> None:  # noqa: ARG002
        """Let the next request begin one further."""
        self._count += 1

    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:  # noqa: ARG002
        """Say that it was its turn."""
        return "its turn"


def create() -> RoundRobin:
    """Make the policy."""
    return RoundRobin()
