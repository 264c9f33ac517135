"""Power of two choices: draw two at random, try the less loaded first.

Less loaded is who is thought to have fewer requests now for each of its slots: ours in flight there, and those of others
that its node reported, which count the less the older the report is. Where somebody's slots are not known, requests alone
count. Everybody draws for themselves, so nobody herds to one best machine, and a stale report misleads only half the draws.
"""

from collections.abc import Sequence

from registry.clock import Chance
from router.policies import Policy
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import draw, weights

_DRAWN = 10
"""Places that are drawn: no request is tried more often, and the others stay as they were found."""


class TwoChoices(Policy):
    """Draws two, again and again."""

    def order(
        self,
        request: Request,  # noqa: ARG002 (looks at load alone)
        candidates: Sequence[Candidate],
        random: Chance,
    ) -> Sequence[Candidate]:
        """Return the candidates in the order of repeated draws of two, each drawn as often as it has slots."""
        left, parts = list(candidates), list(weights(candidates))
        fullness = [(c.expected + 1) / part for c, part in zip(left, parts, strict=True)]
        ordered: list[Candidate] = []
        while len(left) > 1 and len(ordered) < _DRAWN:
            first = draw(parts, random)
            # The second is another one: two draws of the same would be no choice.
            second = draw([0 if i == first else part for i, part in enumerate(parts)], random)
            better = first if fullness[first] <= fullness[second] else second
            ordered.append(left.pop(better))
            del parts[better], fullness[better]
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


def create() -> TwoChoices:
    """Make the policy."""
    return TwoChoices()
