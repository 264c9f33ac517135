"""Readiness of a model's workers, and for how long it is worth waiting. No I/O, time is an argument.

A model is not ready when no worker could begin to work: all are lost, refuse connections, or are still loading. A restarted
process is back soon, and one that says it is loading is alive; a worker that has been away for long is not waited for.

Vitals of addresses: when each answered last, and whose silence may be a restart. An address that never answered a probe is not
waited for, nor one that has been away for longer than its restarts take.
"""

import re
from dataclasses import dataclass

import orjson

from registry.bounded import put_newest
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
"""Seconds that a restart is assumed to take, or twice the longest absence so far, if that is more."""

LONGEST_RESTART = 120.0
"""Upper bound of the seconds that a restart is assumed to take."""

FORGOTTEN = 600.0
"""Seconds after which the absence of an address, or of a model, is forgotten unless it was noticed again."""

MAX_ADDRESSES = 20_000
"""Addresses that are remembered; the one added first is evicted."""


@dataclass(slots=True)
class _Life:
    seen: float | None = None
    since: float | None = None
    last: float = 0.0
    probed: bool = False
    hopeful: bool | None = None
    restart: float = RESTART


@dataclass(frozen=True, slots=True)
class AddressHealth:
    """State of one address: whether it answered last, whether it ever did, and for how many seconds it has been silent."""

    known: bool = False
    answers: bool = False
    ever: bool = False
    silent: float = 0.0


class HealthTable:
    """Signs of life of all addresses that were asked or probed."""

    def __init__(self) -> None:
        self._by_address: dict[str, _Life] = {}

    def answered(self, address: str, now: float) -> None:
        """Note that an address answered, with success or an error."""
        life = self._by_address.get(address) or self._remember(address)
        if life.since is not None:
            if life.seen is not None:
                took = now - (life.seen if life.probed else life.since)
                life.restart = min(max(life.restart, 2 * took), LONGEST_RESTART)
            life.since = life.hopeful = None
        life.seen = now

    def record_absence(self, address: str, now: float) -> None:
        """Note that an address was away."""
        life = self._by_address.get(address) or self._remember(address)
        if life.since is None or now - life.last >= FORGOTTEN:
            life.since = now
        life.last = now

    def probed(self, address: str, now: float, *, answers: bool) -> None:
        """Note the result of a probe, which is sent now and then."""
        (self.answered if answers else self.record_absence)(address, now)
        self._by_address[address].probed = True

    def take(self, address: str, error: WorkerError, now: float) -> None:
        """Take in what the error of an attempt shows about its address."""
        match error:
            case WorkerAway():
                self.record_absence(address, now)
                self._by_address[address].hopeful = error.hopeful
            case WorkerUnreachable() | WorkerTimeout() if not error.sent:
                self.record_absence(address, now)
            case (
                WorkerUnreachable()
                | WorkerTimeout()
                | WorkerDied()
                | WorkerUnable()
                | WorkerStale()
            ):
                # The address may be alive or not, or was not asked.
                pass
            case _:
                self.answered(address, now)

    def recent(self, address: str, now: float, seconds: float) -> bool:
        """Return whether an address answered last, and within so many seconds."""
        life = self._by_address.get(address)
        return life is not None and life.since is None and now - (life.seen or 0.0) < seconds

    def may_return(self, address: str, now: float) -> bool:
        """Return whether an address is worth waiting for: it answers, or did a moment ago, or nothing is known of it."""
        life = self._by_address.get(address)
        if life is None or life.since is None or now - life.last >= FORGOTTEN:
            return True
        if life.hopeful is not None:
            return life.hopeful
        if life.seen is None and life.probed:
            return False
        # A probed address is known to have been there when it last answered; of others, only the first miss is known.
        gone = life.seen if life.probed and life.seen is not None else life.since
        return now - gone < life.restart

    def life(self, address: str, now: float) -> AddressHealth:
        """Describe an address for people."""
        life = self._by_address.get(address)
        if life is None:
            return AddressHealth()
        since = life.seen if life.seen is not None else life.since
        silent = 0.0 if life.since is None or since is None else now - since
        return AddressHealth(
            known=True, answers=life.since is None, ever=life.seen is not None, silent=silent
        )

    def _remember(self, address: str) -> _Life:
        life = _Life()
        put_newest(self._by_address, address, life, most=MAX_ADDRESSES)
        return life


HOPE = 120.0
"""Seconds of a model's absence during which requests still wait for it, though no worker says that it is loading."""

MAX_MODELS = 4_096
"""Models that are remembered; the one that was missed longest ago is evicted, and is waited for anew."""

LONGEST_ETA = 3600.0

# Texts of a proxy's 503 that mean that no worker has the request: HAProxy's, Envoy's (twice), Traefik's, and a text of nginx that
# Kubernetes' ingress and AWS's load balancer also send where a service has no endpoint. Envoy says `connection termination`
# of a worker that took the request.
_UNREACHED = re.compile(
    rb"No server is available to handle|no healthy upstream|reset reason: (?:remote |local )?connection failure"
    rb"|no available server|503 Service Temporarily Unavailable"
)


@dataclass(slots=True)
class _Spell:
    since: float
    last: float
    loading: bool = False


def is_not_ready(error: RouterError) -> bool:
    """Return whether an error means that no worker could begin to work."""
    match error:
        case NobodyServes() | WorkerAway() | WorkerLoading():
            return True
        case WorkerUnreachable() | WorkerTimeout():
            return not error.sent
        case _:
            return False


def loading_error(body: bytes) -> WorkerLoading | None:
    """Return the error for the body of a 503, `None` unless it says that the model is being loaded."""
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


def unreached_error(body: bytes) -> WorkerUnreachable | None:
    """Return the error for the body of a 503, `None` unless a proxy says there that it could not pass the request on."""
    if _UNREACHED.search(body) is None:
        return None
    return WorkerUnreachable("a proxy answers, but it does not reach the worker")


class Readiness:
    """The models that are not ready, since when, and how long their last loading took."""

    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}
        self._loading_times: dict[str, float] = {}

    def record_not_ready(self, model: str, error: RouterError, now: float) -> None:
        """Note that no worker of a model was ready."""
        spell = self._spells.get(model)
        if spell is None or now - spell.last >= FORGOTTEN:
            spell = _Spell(now, now)
        spell.last, spell.loading = now, isinstance(error, WorkerLoading)
        put_newest(self._spells, model, spell, most=MAX_MODELS)

    def answered(self, model: str, now: float) -> None:
        """Note that a worker of a model answers."""
        if not self._spells:
            return
        spell = self._spells.pop(model, None)
        if spell is not None and spell.loading:
            put_newest(self._loading_times, model, now - spell.since, most=MAX_MODELS)

    def is_worth_waiting(self, model: str, now: float) -> bool:
        """Return whether a model that was missed is worth waiting for."""
        spell = self._spells.get(model)
        return spell is None or spell.loading or now - spell.since < HOPE

    def eta(self, model: str, now: float) -> float | None:
        """Return the seconds until a loading model is ready if it takes as long as the last time, `None` if unknown or over."""
        spell, took = self._spells.get(model), self._loading_times.get(model)
        if spell is None or took is None or now - spell.since >= took:
            return None
        return took - (now - spell.since)
