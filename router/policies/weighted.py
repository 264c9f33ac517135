"""By chance, each machine as often as it has slots, whatever its load: for requests that are alike.

Slots are what a worker was registered with (`capacity`) or what its node reported; where somebody's are not known, all
count alike.
"""

from collections.abc import Mapping, Sequence

from registry.clock import Chance
from router.policies import Policy
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import draw, weights


class Weighted(Policy):
    """Draws by slots."""

    def order(
        self,
        request: Request,  # noqa: ARG002 (looks at slots alone)
        candidates: Sequence[Candidate],
        random: Chance,
    ) -> Sequence[Candidate]:
        """Return the candidates as they were drawn, none twice."""
        left, parts, ordered = list(candidates), list(weights(candidates)), []
        while left:
            place = draw(parts, random)
            ordered.append(left.pop(place))
            del parts[place]
        return ordered

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:  # noqa: ARG002
        """Name the slots."""
        return f"drawn by its slots: {candidate.slots or 'not known'}"

    def figures(
        self,
        request: Request,  # noqa: ARG002
        candidate: Candidate,
        among: Sequence[Candidate],
    ) -> Mapping[str, float]:
        """Return its share of all draws."""
        parts = weights(among)
        of_it = sum(part for c, part in zip(among, parts, strict=True) if c.key == candidate.key)
        return {"share": of_it / sum(parts)}


def create() -> Weighted:
    """Make the policy."""
    return Weighted()
