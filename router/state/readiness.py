"""Readiness of a model's workers, and for how long it is worth waiting. No I/O, time is an argument.

A model is not ready when nobody was there who could begin to work: everybody lost, connections refused, still loading. A
process that was restarted is back soon, one that says it is loading lives; what has been away for long is not waited for.

Vitals of addresses: which answered last when, and whose silence may be that of a restart. What never answered a probe is not
waited for, nor what has been away for longer than its restarts take.
"""

from dataclasses import dataclass

import orjson

from router.errors import (
    NobodyServes,
    RouterError,
    WorkerAway,
    WorkerDied,
    WorkerError,
    WorkerLoading,
    WorkerStale,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)

RESTART = 30.0
"""Seconds that a restart is thought to take, or twice what an absence took before, if that is more."""

LONGEST_RESTART = 120.0
"""At most."""

FORGOTTEN = 600.0
"""Seconds after which an absence that nobody looked at since is no longer known, nor a model that nobody asked for since."""

MAX_ADDRESSES = 20_000
"""Addresses that are remembered; the one that was heard of longest ago makes room."""


@dataclass(slots=True)
class _Life:
    seen: float | None = None
    since: float | None = None
    last: float = 0.0
    probed: bool = False
    hopeful: bool | None = None
    restart: float = RESTART


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of one address: whether it answered last, if it ever did, and for how many seconds it has been silent."""

    known: bool = False
    answers: bool = False
    ever: bool = False
    silent: float = 0.0


class Vitals:
    """The signs of life of all addresses that were asked or probed."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def answered(self, address: str, now: float) -> None:
        """It gave an answer, whichever."""
        life = self._lives.get(address) or self._remember(address)
        if life.since is not None:
            if life.seen is not None:
                took = now - (life.seen if life.probed else life.since)
                life.restart = min(max(life.restart, 2 * took), LONGEST_RESTART)
            life.since = life.hopeful = None
        life.seen = now

    def missed(self, address: str, now: float) -> None:
        """Nobody was there."""
        life = self._lives.get(address) or self._remember(address)
        if life.since is None or now - life.last >= FORGOTTEN:
            life.since = now
        life.last = now

    def probed(self, address: str, now: float, *, answers: bool) -> None:
        """It was asked something small, as it is now and then."""
        (self.answered if answers else self.missed)(address, now)
        self._lives[address].probed = True

    def take(self, address: str, error: WorkerError, now: float) -> None:
        """Take in what a failed attempt shows."""
        match error:
            case WorkerAway():
                self.missed(address, now)
                self._lives[address].hopeful = error.hopeful
            case WorkerUnreachable() | WorkerTimeout() if not error.sent:
                self.missed(address, now)
            case (
                WorkerUnreachable()
                | WorkerTimeout()
                | WorkerDied()
                | WorkerUnable()
                | WorkerStale()
            ):
                # It may live or not, or was not asked.
                pass
            case _:
                self.answered(address, now)

    def recent(self, address: str, now: float, seconds: float) -> bool:
        """Say whether it answered within so many seconds."""
        life = self._lives.get(address)
        return life is not None and life.since is None and now - (life.seen or 0.0) < seconds

    def may_return(self, address: str, now: float) -> bool:
        """Say whether it is worth waiting for: it answers, or did a moment ago, or nothing is known."""
        life = self._lives.get(address)
        if life is None or life.since is None or now - life.last >= FORGOTTEN:
            return True
        if life.hopeful is not None:
            return life.hopeful
        if life.seen is None and life.probed:
            return False
        # Who is probed is known to have been there until then; of others, only when it was first missed.
        gone = life.seen if life.probed and life.seen is not None else life.since
        return now - gone < life.restart

    def life(self, address: str, now: float) -> Life:
        """Describe an address for people."""
        life = self._lives.get(address)
        if life is None:
            return Life()
        since = life.seen if life.seen is not None else life.since
        silent = 0.0 if life.since is None or since is None else now - since
        return Life(
            known=True, answers=life.since is None, ever=life.seen is not None, silent=silent
        )

    def _remember(self, address: str) -> _Life:
        if len(self._lives) >= MAX_ADDRESSES:
            del self._lives[next(iter(self._lives))]
        life = self._lives[address] = _Life()
        return life


HOPE = 120.0
"""Seconds that a model may have been away, without anybody who says that it loads, for which requests still wait."""

MAX_MODELS = 4_096
"""Models that are remembered; the one that was missed longest ago makes room, and is waited for anew."""

LONGEST_ETA = 3600.0


@dataclass(slots=True)
class _Spell:
    since: float
    last: float
    loading: bool = False


def not_ready(error: RouterError) -> bool:
    """Say whether an error means that nobody was there who could begin to work."""
    match error:
        case NobodyServes() | WorkerAway() | WorkerLoading():
            return True
        case WorkerUnreachable() | WorkerTimeout():
            return not error.sent
        case _:
            return False


def said(body: bytes) -> WorkerLoading | None:
    """Return what the body of a 503 says, `None` unless that is that the model is being loaded."""
    if b"loading" not in body.lower():
        return None
    try:
        words = orjson.loads(body)
    except orjson.JSONDecodeError:
        words = None
    match words:
        case {"loading": {"eta_seconds": int() | float() as eta}} if eta >= 0:
            return WorkerLoading(min(float(eta), LONGEST_ETA))
        case {"estimated_time": int() | float() as eta} if eta >= 0:
            return WorkerLoading(min(float(eta), LONGEST_ETA))
        case _:
            return WorkerLoading()


class Readiness:
    """Which models are not ready, since when, and how long it took the last time."""

    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}
        self._took: dict[str, float] = {}

    def missed(self, model: str, error: RouterError, now: float) -> None:
        """Nobody was ready who serves a model."""
        spell = self._spells.pop(model, None)
        if spell is None or now - spell.last >= FORGOTTEN:
            spell = _Spell(now, now)
            _make_room(self._spells)
        spell.last, spell.loading = now, isinstance(error, WorkerLoading)
        # What was missed last stands last.
        self._spells[model] = spell

    def answered(self, model: str, now: float) -> None:
        """Somebody answers."""
        if not self._spells:
            return
        spell = self._spells.pop(model, None)
        if spell is not None and spell.loading:
            self._took.pop(model, None)
            _make_room(self._took)
            self._took[model] = now - spell.since

    def promising(self, model: str, now: float) -> bool:
        """Say whether it is worth waiting for a model that was missed."""
        spell = self._spells.get(model)
        return spell is None or spell.loading or now - spell.since < HOPE

    def eta(self, model: str, now: float) -> float | None:
        """Return in how many seconds a model that is loading will be ready if it takes as long as the last time."""
        spell, took = self._spells.get(model), self._took.get(model)
        if spell is None or took is None or now - spell.since >= took:
            return None
        return took - (now - spell.since)


def _make_room(held: dict[str, _Spell] | dict[str, float]) -> None:
    if len(held) >= MAX_MODELS:
        del held[next(iter(held))]
