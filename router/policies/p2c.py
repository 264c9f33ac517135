"""Power of few choices: draw three at random, each as often as it can bear requests, and try the one that is soonest done first.

How long a request takes is what the machine's node has learnt from answers (`x-modelvine-service-time`), with the wait for a
slot: ours in flight there and those of others that its node reported, which count the less the older the report is. Where no
service times are known, the less loaded is first. Everybody draws for themselves, so nobody herds to one best machine, and a
stale report misleads only a part of the draws.
"""

from collections.abc import Sequence

from registry.clock import Chance
from router.policies import Policy
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import draw, prospects

_CHOICES = 3
"""Two are enough for machines that are alike; among unlike ones a third finds a quick one more often."""

_DRAWN = 5
"""Places that are drawn: hardly a request is tried more often, and the others stay as they were found."""


class FewChoices(Policy):
    """Draws a few, again and again."""

    samples = True

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates in the order of repeated draws, each drawn as often as it can bear requests."""
        left, expected = list(candidates), prospects(request, candidates)
        parts, costs = [p.part for p in expected], [p.cost for p in expected]
        ordered: list[Candidate] = []
        while len(left) > 1 and len(ordered) < _DRAWN:
            chances, best = list(parts), -1
            # Each is another one: two draws of the same would be no choice.
            for _ in range(min(_CHOICES, len(left))):
                drawn = draw(chances, random)
                chances[drawn] = 0
                if best < 0 or costs[drawn] < costs[best]:
                    best = drawn
            ordered.append(left.pop(best))
            del parts[best], costs[best]
        return ordered + left

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:  # noqa: ARG002
        """Name the load."""
        return f"drawn by p2c: {load_of(candidate)}"


def load_of(candidate: Candidate) -> str:
    """Say what is known of a candidate's load."""
    here, said = f"{candidate.in_flight} in flight from here", candidate.report
    if said is None or not (others := max(0, said.load.waiting - said.ours)):
        return here
    return f"{here}, {others} of others {said.age:.1f} s ago"


def create() -> FewChoices:
    """Make the policy."""
    return FewChoices()
