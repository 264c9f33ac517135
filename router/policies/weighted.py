"""Weighted random by capacity, whatever the load: for equal requests.

Capacity is a replica's slots, registered (`capacity`) or reported by its node, divided by the time that an answer takes it.
"""

from collections.abc import Mapping, Sequence

from registry.clock import RandomSource
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import Policy
from router.select.weights import draw, forecasts


class Weighted(Policy):
    """Policy that draws in proportion to slots and speed."""

    samples = True

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        """Return the candidates as they were drawn, none twice."""
        remaining, ordered = list(candidates), []
        parts = [p.part for p in forecasts(request, candidates)]
        while remaining:
            index = draw(parts, random)
            ordered.append(remaining.pop(index))
            del parts[index]
        return ordered

    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:  # noqa: ARG002
        """Name the slots."""
        return f"drawn by its slots and speed: {candidate.slots or 'not known'}"

    def figures(
        self,
        request: Request,
        candidate: Candidate,
        candidates: Sequence[Candidate],
    ) -> Mapping[str, float]:
        """Return its share of all draws."""
        parts = {
            c.key: p.part for c, p in zip(candidates, forecasts(request, candidates), strict=True)
        }
        return {"share": parts[candidate.key] / sum(parts.values())}


def create() -> Weighted:
    """Make the policy."""
    return Weighted()
