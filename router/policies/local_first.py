"""Local workers first, in the order of their load; then other nodes, by power of few choices.

For machines with a worker of their own that should serve their own callers: no hop, and no part of a request leaves it.
"""

from collections.abc import Sequence

from registry.clock import RandomSource
from router.policies.p2c import FewChoices, load_of
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import Policy


class LocalFirst(Policy):
    """Policy that prefers local workers."""

    samples = True
    compares = True

    def __init__(self) -> None:
        self._remote_policy = FewChoices()

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        """Return own workers by load, then the others."""
        local = sorted((c for c in candidates if c.worker), key=lambda c: c.expected_requests)
        remote = [c for c in candidates if not c.worker]
        return [*local, *self._remote_policy.order(request, remote, random)]

    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:
        """Name the place, and the load."""
        if candidate.worker:
            return f"a worker of this machine: {load_of(candidate)}"
        return self._remote_policy.why(request, candidate, candidates)


def create() -> LocalFirst:
    """Make the policy."""
    return LocalFirst()
