"""By chance, each machine as often as it has slots, whatever its load: for requests that are alike.

Slots are what a worker was registered with (`capacity`) or what its node reported; where somebody's are not known, all
count alike.
"""

from collections.abc import Sequence

from router.candidates import Candidate
from router.policies import Chance, Policy
from router.requests import Request
from router.weights import draw, slots_of, weights


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

    def why(self, request: Request, candidate: Candidate) -> str:  # noqa: ARG002
        """Name the slots."""
        return f"drawn by its slots: {slots_of(candidate) or 'not known'}"


def create() -> Weighted:
    """Make the policy."""
    return Weighted()
