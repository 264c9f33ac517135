"""Policy: orders candidates. What holds for all policies is here: trusted candidates come before those in doubt.

The policies are in `router/policies`. A policy knows nothing of connections. `order` must not change its state, since it is
also called to explain choices to people: a policy learns only from `begun`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from registry.clock import RandomSource
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import late_candidates, prefers_free_slot


class Policy(ABC):
    """Load-balancing policy.

    One that `samples` gets a few drawn candidates if there are many; the others get all. For one that `compares` what
    candidates cost, nodes are asked for their load before a long request.
    """

    samples: bool = False
    compares: bool = False

    @abstractmethod
    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        """Return all candidates, the first to be tried first."""

    @abstractmethod
    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:
        """Describe briefly what speaks for or against one of these candidates, for people."""

    def figures(
        self,
        request: Request,  # noqa: ARG002
        candidate: Candidate,  # noqa: ARG002
        candidates: Sequence[Candidate],  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return by name the figures behind `why` besides load, for machines; none by default."""
        return {}

    def begun(self, request: Request) -> None:  # noqa: ARG002
        """Take in that the request is sent in the order that was just returned; do nothing by default."""
        return


def order_candidates(
    policy: Policy, request: Request, candidates: Sequence[Candidate], random: RandomSource
) -> Sequence[Candidate]:
    """Order candidates first by how far they can be trusted (see `Candidate.rank`), then by a policy."""
    if len(candidates) < 2:
        return candidates
    ranks = {candidate.rank for candidate in candidates}
    if len(ranks) == 1:
        return _order_group(policy, request, candidates, random)
    groups = ([c for c in candidates if c.rank == rank] for rank in sorted(ranks))
    return [c for group in groups for c in _order_group(policy, request, group, random)]


def _order_group(
    policy: Policy, request: Request, candidates: Sequence[Candidate], random: RandomSource
) -> Sequence[Candidate]:
    """Order candidates of one rank: those that will miss the caller's target time come last.

    For sessions of a batch, candidates without a free slot come after those with one.
    """
    ordered = policy.order(request, candidates, random)
    if prefers_free_slot(request):
        ordered = sorted(ordered, key=lambda c: not c.has_room)
    if not request.aim:
        return ordered
    too_late = late_candidates(request, candidates)
    return sorted(ordered, key=lambda c: c.key in too_late)
