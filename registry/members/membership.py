"""Membership: which of the known nodes live, and which are probed now. No I/O.

Connected peers are probed in turn, the one that was silent longest first, so the traffic of a node does not grow with the
mesh. A suspect is probed at once and repeatedly, directly and through intermediaries; an unreachable node ever more rarely. A
doubt of another node changes no state by itself: it makes this node probe too, as does a request that waits.
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
from registry.members.probe import ProbeSchedule, Round, choose_intermediaries, probe_steps
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

REQUESTED_PROBE_PAUSE = 1.0
"""Minimum seconds between two probes of the same node on behalf of requests that wait for it."""

# A failure of a round of probes counts only while the round runs: an answer has ended it.
_OF_ROUNDS = frozenset({Evidence.MISSED, Evidence.UNREACHED})
_NEVER, _FOREVER = float("-inf"), float("inf")


class Membership:
    """Health of all other nodes, and the probes that are due."""

    def __init__(self, settings: RegistrySettings, jitter: RandomSource) -> None:
        self.awareness = Awareness()
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
    def health(self) -> Mapping[PeerId, MemberHealth]:
        """The health of every followed node."""
        return self._health

    # Followed nodes.

    def restore(self, node: PeerId, now: float, *, beat: tuple[Version, int] | None = None) -> None:
        """Follow a node that the store remembers; it counts as lost until it is heard."""
        lost = MemberHealth(Status.LOST, heard=_NEVER, since=now, why=Evidence.SILENCE)
        if beat is not None:
            lost = replace(lost, version=beat[0], beat=beat[1])
        if node not in self._health:
            self._health.put(node, lost)

    def note_record(self, node: PeerId, *, heard_at: float, now: float, has_left: bool) -> None:
        """Note a newer record of a node, confirmed at `heard_at`, maybe by another node."""
        health = self._health.get(node)
        # A newer record proves life only as far as it is fresh: a sync may bring one from long ago.
        if health is None or heard_at > health.heard:
            first = initial_health(heard_at=heard_at, now=now, lease=self.lease)
            self._health.put(node, first if health is None else _health_after_record(health, first))
        # A node that left is not probed.
        (self._left.add if has_left else self._left.discard)(node)
        if has_left or self._health[node].contact is Status.ALIVE:
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
        self, node: PeerId, evidence: Evidence, now: float, *, asked_at: float | None = None
    ) -> bool:
        """Note evidence; return whether the node's state changed. Evidence about an unknown node changes nothing.

        An answer is as old as its question, which was sent at `asked_at`: it may have waited to be read.
        """
        if evidence is Evidence.LINKED:
            self._schedule.add_peer(node)
        elif evidence is Evidence.PARTED:
            self._schedule.remove_peer(node)
            self._suspicion.note_disconnected(node, now)
        before = self._health.get(node)
        if before is None or (evidence in _OF_ROUNDS and node not in self._running):
            return False
        if self._is_outdated(node, before, evidence, asked_at):
            return False
        was_heard = evidence in _OF_ROUNDS and self._was_heard_meanwhile(node, before, now)
        after = (
            before.with_path_failure(evidence, now)
            if was_heard
            else before.with_evidence(evidence, now)
        )
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

    def note_hearsay(self, node: PeerId, heard_at: float, now: float) -> bool:
        """Note that a peer heard a node, which counts if this node has not since its start; return whether a state changed."""
        health = self._health.get(node)
        if health is None or health.heard > _NEVER or heard_at + self.lease <= now:
            return False
        self._health.put(node, replace(health, heard=heard_at).with_evidence(Evidence.TOLD, now))
        return self._health[node].contact is not health.contact

    def note_doubt(self, node: PeerId, now: float) -> None:
        """Note that another node cannot reach `node`, and schedule a probe, unless it gives a sign of life before."""
        health = self._health.get(node)
        if health is None or node in self._left:
            return
        probe_at = self._suspicion.note_doubt(node, now)
        if probe_at <= now:
            self._health.put(node, replace(health, accused=now))
        if health.contact is Status.ALIVE:
            wait = self._settings.probe_timeout * (0.25 + 0.5 * self._jitter())
            self._pending.setdefault(node, probe_at + wait)

    def request_probe(self, node: PeerId, now: float) -> bool:
        """Make a probe of a node due at once, because a request waits for it; return whether it is.

        It is not if the node is unknown, lost or has left, or was probed for one within `REQUESTED_PROBE_PAUSE` seconds.
        """
        health = self._health.get(node)
        is_member = (
            health is not None and health.contact is not Status.LOST and node not in self._left
        )
        if (
            not is_member
            or now - self._probe_requested_at.get(node, _NEVER) < REQUESTED_PROBE_PAUSE
        ):
            return False
        self._probe_requested_at[node] = now
        self._schedule_probe_now(node, now)
        return True

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left this node's own probe unanswered, and has not answered since."""
        health = self._health.get(node)
        return health is not None and health.shut in _OF_ROUNDS

    def note_heartbeat(self, node: PeerId, version: Version, beat: int) -> None:
        """Remember the newest heartbeat of a node."""
        self._health.put(node, replace(self._health[node], beat=beat, version=version))

    def note_stall(self, seconds: float, now: float) -> None:
        """Note that this process stalled: what it could not hear meanwhile does not count as silence."""
        self.awareness.note_stall(seconds, now)
        self._factor = self.awareness.factor(now)
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
        self._factor = self.awareness.factor(now)
        # The prober ends rounds long before this. If it does not, the node gets another round.
        for node in [n for n, began in self._running.items() if self._overdue(began) <= now]:
            self.end_probe(node, now)
        for node in [
            n
            for n, requested_at in self._probe_requested_at.items()
            if now - requested_at > REQUESTED_PROBE_PAUSE
        ]:
            del self._probe_requested_at[node]
        self._suspicion.tick(now)
        changed = self._health.pass_time(now, **self._times())
        for node in changed:
            self._cancel_probes(node)
        return frozenset(changed)

    def start_due_probes(self, now: float) -> list[PeerId]:
        """Begin the probes that are due, and return their nodes; `probe_round` yields the steps, `end_probe` ends a round."""
        free = ROUNDS - len(self._running)
        due = [
            n for n, due_at in self._pending.items() if due_at <= now and n not in self._running
        ][:free]
        if (
            len(due) < free
            and (next_probe := self._next_in_turn()) is not None
            and next_probe[1] <= now
        ):
            due.append(next_probe[0])
            self._schedule.note_probed(next_probe[0], now)
        for node in due:
            self._running[node] = now
            self._pending.pop(node, None)
        return due

    def probe_round(self, node: PeerId, connected: Mapping[PeerId, float]) -> Round:
        """Yield the steps of a round; `connected` are the peers that can be asked, each with its round trip in seconds."""
        if node not in self._running:
            return
        intermediaries = choose_intermediaries(
            connected, node, self._health[node].proved_by, self._jitter
        )
        linked, dial = node in connected, node in self._probe_requested_at
        yield from probe_steps(
            self._health[node], linked=linked, intermediaries=intermediaries, dial=dial
        )

    def note_proof(self, node: PeerId, intermediary: PeerId) -> None:
        """Remember the intermediary that got a proof of life from a node: it is asked first the next time."""
        if node in self._health:
            self._health.put(node, replace(self._health[node], proved_by=intermediary))

    def end_probe(self, node: PeerId, now: float) -> None:
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
        return self._suspicion.take_due(now) if self._factor == 1.0 else []

    def next_due(self) -> float:
        """Return when something is due next."""
        times = [self._health.next_change_at(**self._times())]
        if self._factor == 1.0:
            times.append(self._suspicion.next_due())
        times += map(self._overdue, self._running.values())
        if len(self._running) >= ROUNDS:
            return min(times)
        next_probe = self._next_in_turn()
        times += (due_at for node, due_at in self._pending.items() if node not in self._running)
        return min(*times, next_probe[1] if next_probe else _FOREVER)

    def lost_nodes(self) -> list[PeerId]:
        """Return the lost nodes, the one that was heard longest ago first."""
        return self._health.lost_nodes

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
        return self._schedule.next_probe(self._health, self._pending, self._running)

    def _is_outdated(
        self, node: PeerId, health: MemberHealth, evidence: Evidence, asked_at: float | None
    ) -> bool:
        # A message may be older than the end of its connection, and a node that it made alive would not be probed in turn.
        if node in self._schedule.connected or health.contact is Status.ALIVE:
            return False
        return evidence is Evidence.ASKED or (asked_at is not None and asked_at < health.since)

    def _was_heard_meanwhile(self, node: PeerId, health: MemberHealth, now: float) -> bool:
        # An unreachable node becomes suspect by its silence to all nodes, not by this node's failed probes.
        if health.contact is Status.UNREACHABLE:
            return now - health.heard < UNPROBED * self._settings.suspicion
        return health.heard > self._running[node]

    def _note_evidence(self, node: PeerId, evidence: Evidence, now: float) -> None:
        health = self._health[node]
        lost = health.contact is Status.LOST
        if evidence is Evidence.ANSWERED:
            self.awareness.note_probe(node, answered=True, now=now)
        elif evidence is Evidence.MISSED and node in self._schedule.connected and not lost:
            self.awareness.note_probe(node, answered=False, now=now)
        elif evidence is Evidence.UNREACHED:
            # A node that is silent only to this one can refute the doubt once it is published.
            if now - health.heard > self._settings.suspicion or health.contact is Status.SUSPECT:
                linked = node in self._schedule.connected
                self._suspicion.schedule_doubt(node, now, heard_at=health.heard, linked=linked)
        elif evidence in LIFE:
            self._suspicion.cancel_doubt(node)

    def _schedule_probe(self, node: PeerId, now: float) -> None:
        """Schedule a probe of a node that is suspect or unreachable."""
        health = self._health[node]
        if node in self._running or node in self._left:
            return
        if health.contact is Status.SUSPECT:
            self._pending.setdefault(node, now)
        elif health.contact is Status.UNREACHABLE:
            probe = self._settings.probe
            wait = min(max((now - health.since) / GROWTH, probe), RARELY * probe)
            self._pending.setdefault(node, now + wait * (0.9 + 0.2 * self._jitter()))

    def _schedule_probe_now(self, node: PeerId, now: float) -> None:
        if node not in self._running and node not in self._left:
            self._pending[node] = min(now, self._pending.get(node, now))

    def _cancel_suspicion(self, node: PeerId) -> None:
        self._suspicion.cancel_doubt(node)
        self._cancel_probes(node)

    def _cancel_probes(self, node: PeerId) -> None:
        self._pending.pop(node, None)
        self._running.pop(node, None)


def _health_after_record(health: MemberHealth, fresh: MemberHealth) -> MemberHealth:
    updated = replace(health, heard=fresh.heard)
    # A record from before a failure that this node saw itself does not outweigh it.
    outdated = health.why is not Evidence.SILENCE and fresh.heard <= health.since
    if fresh.contact is Status.LOST or outdated:
        return updated
    # Other nodes heard it, so it lives; whether this node reaches it is another question.
    return replace(health.with_evidence(fresh.why, fresh.since), heard=fresh.heard)
