"""Power of few choices: draw three replicas, weighted by capacity, and try the one with the shortest expected time first.

The expected time is the service time that the replica's node has learnt from answers (`x-modelvine-service-time`), plus the
wait for a slot. The wait follows from this node's requests in flight there and from other nodes' as its node reported them; an
older report counts less. If no service times are known, the less loaded is first. Each node draws for itself, so nodes do not
herd to one best machine, and a stale report misleads only a part of the draws.

For a conversation, two of the three are drawn by its key, the same on every node, and replicas that have read its beginning
join them. They need not read again what is in their caches: the seconds saved are weighed against those of waiting.
"""

from collections.abc import Mapping, Sequence

from registry.clock import RandomSource
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import Policy
from router.select.rendezvous import conversation_key, order_by_key
from router.select.weights import draw, draw_all, forecasts, is_affinity_worthwhile

_CHOICES = 3
"""Two are enough for machines that are alike; among unlike ones, a third finds a fast one more often."""

_BY_KEY = 2
"""Candidates drawn by the key of a conversation. The third is drawn at random: keys may differ in load."""

_ORDERED = 5
"""Candidates that are compared: hardly any request is tried more often, and the others stay as they were drawn."""


class FewChoices(Policy):
    """Policy that compares the few that are drawn first, then those left and the next."""

    samples = True
    compares = True

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        """Return the candidates, beginning with the best of the few drawn first; each is drawn in proportion to its part.

        The first few of a conversation are ordered by cost: the next one may have read it, too.
        """
        expected = forecasts(request, candidates)
        parts = [e.part for e in expected]
        costs = [e.cost for e in expected]
        ordered: list[int] = []
        remaining = [*range(len(candidates))]
        if (key := conversation_key(request)) and is_affinity_worthwhile(request, candidates):
            likely = [*order_by_key(key, candidates, parts)[:_BY_KEY], draw(parts, random)]
            likely += (index for index, c in enumerate(candidates) if c.before.kilobytes)
            ordered = sorted(dict.fromkeys(likely), key=costs.__getitem__)
            remaining = [index for index in remaining if index not in ordered]
        if len(remaining) <= _CHOICES and len({*map(costs.__getitem__, remaining)}) == len(
            remaining
        ):
            # All of them would be drawn, and no two cost the same: chance has no effect.
            remaining.sort(key=costs.__getitem__)
        elif len(ordered) < _ORDERED:
            remaining = [
                remaining[position]
                for position in draw_all([parts[index] for index in remaining], random)
            ]
            # The best of those drawn first, then the best of the others and the next one, and so on.
            for position in range(min(_ORDERED - len(ordered), len(remaining) - 1)):
                best = position
                for index in range(position + 1, min(position + _CHOICES, len(remaining))):
                    if costs[remaining[index]] < costs[remaining[best]]:
                        best = index
                remaining.insert(position, remaining.pop(best))
        return [candidates[index] for index in ordered + remaining]

    def why(self, request: Request, candidate: Candidate, candidates: Sequence[Candidate]) -> str:  # noqa: ARG002
        """Say how much of the conversation is probably cached, and the load."""
        cached = ""
        if candidate.before.kilobytes:
            total = request.prefixes.size / 1_000
            cached = (
                f"it read {candidate.before.kilobytes:.1f} of this conversation's {total:.1f} KB "
                f"{candidate.before.age:.0f} s ago, about {candidate.cached_kilobytes:.1f} of them are probably cached: "
            )
        return f"drawn by p2c: {cached}{load_of(candidate)}"

    def figures(
        self,
        request: Request,
        candidate: Candidate,
        candidates: Sequence[Candidate],  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return how much of the conversation it has read, and how much of that may be in its cache, in kilobytes."""
        if not request.prefixes.chain:
            return {}
        return {
            "kilobytes": request.prefixes.size / 1_000,
            "read_kilobytes": candidate.before.kilobytes,
            "cached_kilobytes": candidate.cached_kilobytes,
        }


def load_of(candidate: Candidate) -> str:
    """Describe what is known of a candidate's load."""
    here, report = f"{candidate.in_flight} in flight from here", candidate.report
    if report is None or not (others := max(0, report.load.waiting - report.ours)):
        return here
    return f"{here}, {others} from others {report.age:.1f} s ago"


def create() -> FewChoices:
    """Make the policy."""
    return FewChoices()
