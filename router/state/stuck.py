"""Detection of a stuck worker, as against one that thinks: told from what is usual for it. No I/O, time is an argument.

A worker may compute for minutes before its first byte, and some answer nothing else meanwhile. So silence makes us ask it
something small, and no answer to that counts only from one that is known to answer while it works, or after far more than its
usual time.
"""

from dataclasses import dataclass

LEARN_AFTER = 0.5
LEARN_AGAIN = 60.0
"""Seconds of waiting after which a worker is asked whether it answers while it works, and until it is asked that again."""

PATIENCE = 2.0
PATIENCE_FACTOR = 4.0
"""Seconds without a byte after which somebody who waits makes us ask, and times its usual wait, whichever is longer."""

SURE = 5.0
SURE_FACTOR = 10.0
"""The same, after which a worker that never answered while it worked is taken for stopped all the same."""

ASK_AGAIN = 1.0
LONGEST_PAUSE = 4.0
"""Seconds between two questions to one worker, and to one that has stopped: doubled each time, up to this."""

MAX_WORKERS = 4_096
"""Addresses that are remembered; beyond that those are forgotten for which nobody waits."""

_WEIGHT = 0.2  # of the newest wait in what is usual


@dataclass(slots=True)
class AskedWorker:
    """What is known of one worker. `waiting` requests wait for their first bytes, and keep it from being forgotten."""

    waiting: int = 0
    stirred: float = 0.0
    usual: float = 0.0
    talks: bool = False
    asked: float = float("-inf")
    asking: bool = False
    silent: bool = False
    pause: float = ASK_AGAIN

    def answered(self, seconds: float, now: float) -> None:
        """A wait is over, with a first byte after so many seconds."""
        self.waiting -= 1
        self.usual += _WEIGHT * (seconds - self.usual) if self.usual else seconds
        self.stirred = now
        if self.silent:
            self.silent, self.pause = False, ASK_AGAIN

    def left(self) -> None:
        """A wait is over, with no first byte."""
        self.waiting -= 1


class Silence:
    """What is known of the workers that were asked, by address."""

    def __init__(self) -> None:
        self._workers: dict[str, AskedWorker] = {}

    def began(self, address: str, now: float) -> AskedWorker:
        """A request waits for its first byte; return what has to be told how that ends."""
        one = self._workers.get(address) or self._remember(address)
        if not one.waiting:
            one.stirred = now
        one.waiting += 1
        return one

    def wants_asking(self, address: str, now: float) -> bool:
        """Say whether it is time to ask a worker something small, and take it as asked."""
        one = self._workers.get(address)
        if one is None or one.asking:
            return False
        quiet = now - one.stirred
        if one.silent:
            due = now - one.asked >= one.pause
        elif not one.waiting:
            due = False
        elif quiet >= _longer(PATIENCE, PATIENCE_FACTOR, one):
            due = now - one.asked >= ASK_AGAIN
        else:
            due = not one.talks and quiet >= LEARN_AFTER and now - one.asked >= LEARN_AGAIN
        if due:
            one.asked, one.asking = now, True
        return due

    def asked(self, address: str, now: float, *, answered: bool) -> None:
        """Take in what came of asking."""
        one = self._workers.get(address)
        if one is None:
            return
        one.asking = False
        if answered:
            one.talks = one.talks or one.waiting > 0
            one.silent, one.pause = False, ASK_AGAIN
        elif one.silent:
            one.pause = min(2 * one.pause, LONGEST_PAUSE)
        elif one.waiting:
            quiet = now - one.stirred
            known = one.talks and quiet >= _longer(PATIENCE, PATIENCE_FACTOR, one)
            one.silent = known or quiet >= _longer(SURE, SURE_FACTOR, one)

    def silent(self, address: str) -> bool:
        """Say whether a worker has stopped."""
        one = self._workers.get(address)
        return one is not None and one.silent

    def _remember(self, address: str) -> AskedWorker:
        if len(self._workers) >= MAX_WORKERS:
            self._workers = {a: one for a, one in self._workers.items() if one.waiting}
        one = self._workers[address] = AskedWorker()
        return one


def _longer(seconds: float, factor: float, one: AskedWorker) -> float:
    return max(seconds, factor * one.usual)
