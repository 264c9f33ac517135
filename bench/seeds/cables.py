"""Cables between machines: how long a message takes, and whether it arrives at all. All chance is of the seed.

Each connection draws from a chance of its own: what happens to several at one moment happens in no certain order.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

NEAR = 0.000_05
"""Seconds within one machine."""


@dataclass
class Cables:
    """What is between machines; machines have numbers, from 0."""

    seed: int
    delay: float = 0.005
    """Mean seconds one way between two machines."""
    losses: list[float] = field(default_factory=list)
    """How likely it is that a message between machines is lost; the worst counts."""
    down: Counter[int] = field(default_factory=Counter)
    """Machines without power: nothing answers there, not even a refusal."""
    cut: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Directions in which nothing passes, and for how many reasons."""

    def passes(self, here: int, there: int) -> bool:
        """Say whether anything arrives in this direction now."""
        return not (self.down[there] or self.down[here] or self.cut[here, there])

    def chance(self, *of: object) -> random.Random:
        """Return a chance of its own."""
        return random.Random(f"cables {self.seed} {of}")

    def trip(self, here: int, there: int, rng: random.Random) -> float:
        """Draw how many seconds a message takes."""
        return NEAR if here == there else self.delay * rng.lognormvariate(-0.1, 0.45)

    def loses(self, here: int, there: int, rng: random.Random) -> bool:
        """Draw whether a message gets lost."""
        return here != there and bool(self.losses) and rng.random() < max(self.losses)
