"""Power of two choices: draw two at random, try the less loaded first.

Less loaded is who is thought to have fewer requests now: ours in flight there, and those of others that its node reported,
which count the less the older the report is. Everybody draws for themselves, so nobody herds to one best machine, and a
stale report misleads only half the draws.
Suspect nodes come after all others, whatever their load, and those that are known not to be reached from here last.
"""

from collections.abc import Callable, Sequence

from router.candidates import Candidate


def order(candidates: Sequence[Candidate], random: Callable[[], float]) -> Sequence[Candidate]:
    """Return the candidates in the order of repeated draws of two."""
    if len(candidates) < 2:
        return candidates
    trusted = [c for c in candidates if not c.suspect]
    doubted = [c for c in candidates if c.suspect]
    return [
        *_draws(trusted, random),
        *sorted(_draws(doubted, random), key=lambda c: c.unreachable),
    ]


def _draws(left: list[Candidate], random: Callable[[], float]) -> list[Candidate]:
    ordered: list[Candidate] = []
    while len(left) > 1:
        first = int(random() * len(left))
        second = int(random() * (len(left) - 1))
        second += second >= first
        better = min(first, second, key=lambda i: left[i].expected)
        ordered.append(left.pop(better))
    return ordered + left
