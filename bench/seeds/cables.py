"""Cables between machines: how long a message takes, and whether it arrives. All randomness comes from the seed.

Each connection has a random generator of its own, as events of several connections at one moment have no fixed order.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

NEAR = 0.000_05
"""Seconds within one machine."""


@dataclass
class Cables:
    """Network between machines, which are numbered from 0."""

    seed: int
    delay: float = 0.005
    """Mean one-way seconds between two machines."""
    losses: list[float] = field(default_factory=list)
    """Probabilities that a message between machines is lost; the greatest applies."""
    down: Counter[int] = field(default_factory=Counter)
    """Machines without power: nothing answers there, not even with a refusal."""
    cut: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Directions in which nothing passes, each with the number of reasons."""

    def passes(self, here: int, there: int) -> bool:
        """Return whether messages arrive in this direction now."""
        return not (self.down[there] or self.down[here] or self.cut[here, there])

    def chance(self, *of: object) -> random.Random:
        """Return a random generator for this purpose."""
        return random.Random(f"cables {self.seed} {of}")

    def trip(self, here: int, there: int, rng: random.Random) -> float:
        """Draw the seconds that a message takes."""
        return NEAR if here == there else self.delay * rng.lognormvariate(-0.1, 0.45)

    def loses(self, here: int, there: int, rng: random.Random) -> bool:
        """Draw whether a message is lost."""
        return here != there and bool(self.losses) and rng.random() < max(self.losses)
