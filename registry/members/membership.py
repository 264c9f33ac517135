"""Membership: which of the known nodes live, and which are probed now. One pulse for each node, and the probes. No I/O.

Connected peers are probed in turn, the one that was silent longest first, so the traffic of a node does not grow with the
mesh. A suspect is probed at once and repeatedly, directly and through helpers; an unreachable node ever more rarely. A doubt
of another node changes no state by itself: it makes this node probe too, as does a request that waits.
"""

from collections.abc import Mapping
from dataclasses import replace

from registry.clock import RandomSource
from registry.members.deadlines import MemberDeadlines
from registry.members.liveness import (
    LIFE,
    OPENS,
    UNPROBED,
    Evidence,
    MemberHealth,
    Status,
    initial_health,
)
from registry.members.probe import ProbeSchedule, Round, choose_helpers, probe_steps
from registry.members.suspicion import Awareness, Suspicion
from registry.records import PeerId, Version
from registry.settings import RegistrySettings

ROUNDS = 32
"""Rounds of probes in progress at one time; in a large failure the others wait."""

FEW = 5
"""Live nodes up to which the heartbeat interval is the configured one; beyond, it grows with their number."""

LONGEST_LEASE = 7 * 86_400.0
"""Upper bound of the lease in seconds, however large the mesh: from there on heartbeats become no rarer."""

RARELY = 15.0
"""The longest time between two tries to reach an unreachable node, as a multiple of `probe`."""

GROWTH = 8.0
"""That time is the time since the node became unreachable, divided by this: one that comes back waits about as long again."""

LOOK = 1.0
"""Minimum seconds between two probes of the same node on behalf of requests that wait for it."""

# A failure of a round of probes counts only while the round runs: an answer has ended it.
_OF_ROUNDS = frozenset({Evidence.MISSED, Evidence.UNREACHED})
_NEVER, _FOREVER = float("-inf"), float("inf")


class Membership:
    """The pulses of all other nodes, and the probes that are due."""

    def __init__(self, settings: RegistrySettings, jitter: RandomSource) -> None:
        self.patience = Awareness()
        self.rarity = 1.0
        self._settings = settings
        self._jitter = jitter
        self._health = MemberDeadlines()
        self._schedule = ProbeSchedule(settings, jitter)
        self._left: set[PeerId] = set()
        self._pending: dict[PeerId, float] = {}
        self._running: dict[PeerId, float] = {}
        self._probe_requested_at: dict[PeerId, float] = {}
        self._suspicion = Suspicion(settings, jitter)
        self._resumed_at = _NEVER
        self._factor = 1.0

    @property
    def pulses(self) -> Mapping[PeerId, MemberHealth]:
        """The pulse of every followed node."""
        return self._health

    # Followed nodes.

    def restore(self, node: PeerId, now: float, *, beat: tuple[Version, int] | None = None) -> None:
        """Follow a node that the store remembers; it counts as lost until it is heard."""
        lost = MemberHealth(Status.LOST, heard=_NEVER, since=now, why=Evidence.SILENCE)
        if beat is not None:
            lost = replace(lost, version=beat[0], beat=beat[1])
        if node not in self._health:
            self._health.put(node, lost)

    def follow(self, node: PeerId, *, heard: float, now: float, left: bool) -> None:
        """Note a newer record of a node, confirmed at `heard`, maybe by another node."""
        pulse = self._health.get(node)
        # A newer record proves life only as far as it is fresh: a sync may bring one from long ago.
        if pulse is None or heard > pulse.heard:
            first = initial_health(heard=heard, now=now, lease=self.lease)
            self._health.put(node, first if pulse is None else _health_after_record(pulse, first))
        # A node that left is not probed.
        (self._left.add if left else self._left.discard)(node)
        if left or self._health[node].contact is Status.ALIVE:
            self._cancel_suspicion(node)
        self._schedule_probe(node, now)

    def forget(self, node: PeerId) -> None:
        """Stop following a node."""
        self._health.remove(node)
        self._left.discard(node)
        self._cancel_suspicion(node)
        self._suspicion.forget(node)

    # Evidence.

    def observe(
        self, node: PeerId, evidence: Evidence, now: float, *, asked: float | None = None
    ) -> bool:
        """Note evidence; return whether the node's state changed. Evidence about an unknown node changes nothing.

        An answer is as old as its question, which was sent at `asked`: it may have waited to be read.
        """
        if evidence is Evidence.LINKED:
            self._schedule.join(node)
        elif evidence is Evidence.PARTED:
            self._schedule.part(node)
            self._suspicion.parted(node, now)
        before = self._health.get(node)
        if before is None or (evidence in _OF_ROUNDS and node not in self._running):
            return False
        if self._is_outdated(node, before, evidence, asked):
            return False
        spoke = evidence in _OF_ROUNDS and self._was_heard_meanwhile(node, before, now)
        after = before.with_path_failure(evidence, now) if spoke else before.after(evidence, now)
        self._health.put(node, after)
        self._note_evidence(node, evidence, now)
        if evidence in OPENS:
            self._cancel_suspicion(node)
        elif (
            evidence in LIFE
            and after.contact is Status.ALIVE
            and node not in self._probe_requested_at
        ):
            self._pending.pop(node, None)
        elif evidence is Evidence.LINKED and after.contact is not Status.ALIVE:
            self._schedule_probe_now(node, now)
        self._schedule_probe(node, now)
        return after.contact is not before.contact

    def told(self, node: PeerId, heard: float, now: float) -> bool:
        """Note that a peer heard a node, which counts if this node has not since its start; return whether a state changed."""
        pulse = self._health.get(node)
        if pulse is None or pulse.heard > _NEVER or heard + self.lease <= now:
            return False
        self._health.put(node, replace(pulse, heard=heard).after(Evidence.TOLD, now))
        return self._health[node].contact is not pulse.contact

    def note_doubt(self, node: PeerId, now: float) -> None:
        """Note that another node cannot reach `node`, and schedule a probe, unless it gives a sign of life before."""
        pulse = self._health.get(node)
        if pulse is None or node in self._left:
            return
        look = self._suspicion.hear(node, now)
        if look <= now:
            self._health.put(node, replace(pulse, accused=now))
        if pulse.contact is Status.ALIVE:
            wait = self._settings.probe_timeout * (0.25 + 0.5 * self._jitter())
            self._pending.setdefault(node, look + wait)

    def look(self, node: PeerId, now: float) -> bool:
        """Make a probe of a node due at once, because a request waits for it; return whether it is.

        It is not if the node is unknown, lost or has left, or was looked for less than `LOOK` seconds ago.
        """
        pulse = self._health.get(node)
        known = pulse is not None and pulse.contact is not Status.LOST and node not in self._left
        if not known or now - self._probe_requested_at.get(node, _NEVER) < LOOK:
            return False
        self._probe_requested_at[node] = now
        self._schedule_probe_now(node, now)
        return True

    def silent(self, node: PeerId) -> bool:
        """Return whether a node left this node's own probe unanswered, and has not answered since."""
        pulse = self._health.get(node)
        return pulse is not None and pulse.shut in _OF_ROUNDS

    def beat(self, node: PeerId, version: Version, beat: int) -> None:
        """Remember the newest heartbeat of a node."""
        self._health.put(node, replace(self._health[node], beat=beat, version=version))

    def note_stall(self, seconds: float, now: float) -> None:
        """Note that this process stalled: what it could not hear meanwhile does not count as silence."""
        self.patience.note_stall(seconds, now)
        self._factor = self.patience.factor(now)
        self._resumed_at = now

    # Time.

    @property
    def lease(self) -> float:
        """Seconds of silence after which a node is lost, at the current heartbeat interval."""
        return self._settings.lease * self.rarity

    def tick(self, now: float) -> frozenset[PeerId]:
        """Apply what is due; return the nodes that became lost."""
        rarest = max(LONGEST_LEASE / self._settings.lease, 1.0)
        self.rarity = min(max((self._health.living_count + 1) / FEW, 1.0), rarest)
        self._factor = self.patience.factor(now)
        # The prober ends rounds long before this. If it does not, the node gets another round.
        for node in [n for n, began in self._running.items() if self._overdue(began) <= now]:
            self.ended(node, now)
        for node in [n for n, at in self._probe_requested_at.items() if now - at > LOOK]:
            del self._probe_requested_at[node]
        self._suspicion.tick(now)
        changed = self._health.pass_time(now, **self._times())
        for node in changed:
            self._cancel_probes(node)
        return frozenset(changed)

    def start_due_probes(self, now: float) -> list[PeerId]:
        """Begin the probes that are due, and return their nodes; `round` yields the steps, `ended` ends a round."""
        free = ROUNDS - len(self._running)
        due = [n for n, at in self._pending.items() if at <= now and n not in self._running][:free]
        if len(due) < free and (turn := self._next_in_turn()) is not None and turn[1] <= now:
            due.append(turn[0])
            self._schedule.take(turn[0], now)
        for node in due:
            self._running[node] = now
            self._pending.pop(node, None)
        return due

    def round(self, node: PeerId, connected: Mapping[PeerId, float]) -> Round:
        """Yield the steps of a round; `connected` are the peers that can be asked, each with its round trip in seconds."""
        if node not in self._running:
            return
        helpers = choose_helpers(connected, node, self._health[node].proved_by, self._jitter)
        linked, dial = node in connected, node in self._probe_requested_at
        yield from probe_steps(self._health[node], linked=linked, helpers=helpers, dial=dial)

    def note_proof(self, node: PeerId, helper: PeerId) -> None:
        """Remember the helper that got a proof of life from a node: it is asked first the next time."""
        if node in self._health:
            self._health.put(node, replace(self._health[node], proved_by=helper))

    def ended(self, node: PeerId, now: float) -> None:
        """End a round, and schedule the next if the node is suspect or unreachable."""
        if self._running.pop(node, None) is None:
            return
        match self._health[node].contact:
            case Status.SUSPECT:
                wait = self._settings.probe * (0.5 + 0.5 * self._jitter())
                self._pending.setdefault(node, now + wait)
            case Status.UNREACHABLE:
                self._schedule_probe(node, now)
            case Status.ALIVE | Status.LOST:
                pass

    def take_due_doubts(self, now: float) -> list[PeerId]:
        """Return the nodes that the others should probe too, each once; they wait while this node distrusts itself."""
        return self._suspicion.said(now) if self._factor == 1.0 else []

    def due(self) -> float:
        """Return when something is due next."""
        found = [self._health.due(**self._times())]
        if self._factor == 1.0:
            found.append(self._suspicion.due())
        found += map(self._overdue, self._running.values())
        if len(self._running) >= ROUNDS:
            return min(found)
        turn = self._next_in_turn()
        found += (at for node, at in self._pending.items() if node not in self._running)
        return min(*found, turn[1] if turn else _FOREVER)

    def lost(self) -> list[PeerId]:
        """Return the lost nodes, the one that was heard longest ago first."""
        return self._health.lost

    def has_unheard_nodes(self) -> bool:
        """Return whether there are nodes that gave no sign of life since our start, and have not left."""
        return any(p.heard == _NEVER and n not in self._left for n, p in self._health.items())

    # Internals.

    def _overdue(self, began: float) -> float:
        longest = self._settings.probe + 10 * self._settings.probe_timeout
        return max(began, self._resumed_at) + longest

    def _times(self) -> dict[str, float]:
        suspicion = self._settings.suspicion * self._factor
        return {"lease": self.lease, "suspicion": suspicion, "awake": self._resumed_at}

    def _next_in_turn(self) -> tuple[PeerId, float] | None:
        return self._schedule.next(self._health, self._pending, self._running)

    def _is_outdated(
        self, node: PeerId, pulse: MemberHealth, evidence: Evidence, asked: float | None
    ) -> bool:
        # A message may be older than the end of its connection, and a node that it made alive would not be probed in turn.
        if node in self._schedule.connected or pulse.contact is Status.ALIVE:
            return False
        return evidence is Evidence.ASKED or (asked is not None and asked < pulse.since)

    def _was_heard_meanwhile(self, node: PeerId, pulse: MemberHealth, now: float) -> bool:
        # An unreachable node becomes suspect by its silence to all nodes, not by this node's failed probes.
        if pulse.contact is Status.UNREACHABLE:
            return now - pulse.heard < UNPROBED * self._settings.suspicion
        return pulse.heard > self._running[node]

    def _note_evidence(self, node: PeerId, evidence: Evidence, now: float) -> None:
        pulse = self._health[node]
        lost = pulse.contact is Status.LOST
        if evidence is Evidence.ANSWERED:
            self.patience.note(node, answered=True, now=now)
        elif evidence is Evidence.MISSED and node in self._schedule.connected and not lost:
            self.patience.note(node, answered=False, now=now)
        elif evidence is Evidence.UNREACHED:
            # A node that is silent only to this one can refute the doubt once it is published.
            if now - pulse.heard > self._settings.suspicion or pulse.contact is Status.SUSPECT:
                linked = node in self._schedule.connected
                self._suspicion.unreached(node, now, heard=pulse.heard, linked=linked)
        elif evidence in LIFE:
            self._suspicion.settle(node)

    def _schedule_probe(self, node: PeerId, now: float) -> None:
        """Schedule a probe of a node that is suspect or unreachable."""
        pulse = self._health[node]
        if node in self._running or node in self._left:
            return
        if pulse.contact is Status.SUSPECT:
            self._pending.setdefault(node, now)
        elif pulse.contact is Status.UNREACHABLE:
            probe = self._settings.probe
            wait = min(max((now - pulse.since) / GROWTH, probe), RARELY * probe)
            self._pending.setdefault(node, now + wait * (0.9 + 0.2 * self._jitter()))

    def _schedule_probe_now(self, node: PeerId, now: float) -> None:
        if node not in self._running and node not in self._left:
            self._pending[node] = min(now, self._pending.get(node, now))

    def _cancel_suspicion(self, node: PeerId) -> None:
        self._suspicion.settle(node)
        self._cancel_probes(node)

    def _cancel_probes(self, node: PeerId) -> None:
        self._pending.pop(node, None)
        self._running.pop(node, None)


def _health_after_record(pulse: MemberHealth, fresh: MemberHealth) -> MemberHealth:
    kept = replace(pulse, heard=fresh.heard)
    # A record from before a failure that this node saw itself does not outweigh it.
    outdated = pulse.why is not Evidence.SILENCE and fresh.heard <= pulse.since
    if fresh.contact is Status.LOST or outdated:
        return kept
    # Other nodes heard it, so it lives; whether this node reaches it is another question.
    return replace(pulse.after(fresh.why, fresh.since), heard=fresh.heard)
