"""Readiness of a model's workers, and for how long it is worth waiting. No I/O, time is an argument.

A model is not ready when no worker could begin to work: all are lost, refuse connections, or are still loading. A restarted
process is back soon, and one that says it is loading is alive; a worker that has been away for long is not waited for.

Also the health of addresses: when each answered last, and whose silence may be a restart. An address that never answered a probe
is not waited for, nor one that has been away for longer than its restarts take.
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
class _Health:
    answered_at: float | None = None
    absent_since: float | None = None
    noticed_at: float = 0.0
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
        self._by_address: dict[str, _Health] = {}

    def record_answer(self, address: str, now: float) -> None:
        """Note that an address answered, with success or an error."""
        health = self._by_address.get(address) or self._remember(address)
        if health.absent_since is not None:
            if health.answered_at is not None:
                took = now - (health.answered_at if health.probed else health.absent_since)
                health.restart = min(max(health.restart, 2 * took), LONGEST_RESTART)
            health.absent_since = health.hopeful = None
        health.answered_at = now

    def record_absence(self, address: str, now: float) -> None:
        """Note that an address was away."""
        health = self._by_address.get(address) or self._remember(address)
        if health.absent_since is None or now - health.noticed_at >= FORGOTTEN:
            health.absent_since = now
        health.noticed_at = now

    def record_probe(self, address: str, now: float, *, answers: bool) -> None:
        """Note the result of a probe, which is sent now and then."""
        (self.record_answer if answers else self.record_absence)(address, now)
        self._by_address[address].probed = True

    def record_error(self, address: str, error: WorkerError, now: float) -> None:
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
                self.record_answer(address, now)

    def answered_recently(self, address: str, now: float, seconds: float) -> bool:
        """Return whether an address answered last, and within so many seconds."""
        health = self._by_address.get(address)
        if health is None or health.absent_since is not None:
            return False
        return now - (health.answered_at or 0.0) < seconds

    def may_return(self, address: str, now: float) -> bool:
        """Return whether an address is worth waiting for: it answers, or did a moment ago, or nothing is known of it."""
        health = self._by_address.get(address)
        if health is None or health.absent_since is None or now - health.noticed_at >= FORGOTTEN:
            return True
        if health.hopeful is not None:
            return health.hopeful
        if health.answered_at is None and health.probed:
            return False
        # A probed address is known to have been there when it last answered; of others, only the first miss is known.
        away_since = health.absent_since
        if health.probed and health.answered_at is not None:
            away_since = health.answered_at
        return now - away_since < health.restart

    def health_of(self, address: str, now: float) -> AddressHealth:
        """Describe an address for people."""
        health = self._by_address.get(address)
        if health is None:
            return AddressHealth()
        since = health.answered_at if health.answered_at is not None else health.absent_since
        silent = 0.0 if health.absent_since is None or since is None else now - since
        return AddressHealth(
            known=True,
            answers=health.absent_since is None,
            ever=health.answered_at is not None,
            silent=silent,
        )

    def _remember(self, address: str) -> _Health:
        health = _Health()
        put_newest(self._by_address, address, health, limit=MAX_ADDRESSES)
        return health


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
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    match answer:
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
        put_newest(self._spells, model, spell, limit=MAX_MODELS)

    def record_ready(self, model: str, now: float) -> None:
        """Note that a worker of a model answers."""
        if not self._spells:
            return
        spell = self._spells.pop(model, None)
        if spell is not None and spell.loading:
            put_newest(self._loading_times, model, now - spell.since, limit=MAX_MODELS)

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
