"""Membership: which of the known nodes live, and who is probed now. One pulse for each node, and the probes. No I/O.

Connected peers are probed in turn, the one that was silent longest first, so the traffic of a node does not grow with the
mesh. Whoever is in doubt is probed at once and again, directly and through others; whoever lives out of our reach, ever more
rarely. What another node says of a third one, a doubt, only ever makes us look for ourselves, and so does a request that waits.
"""

from collections.abc import Mapping
from dataclasses import replace

from registry.clock import Chance
from registry.members.deadlines import MemberDeadlines
from registry.members.liveness import LIFE, OPENS, UNPROBED, Evidence, Pulse, Status, first_pulse
from registry.members.probe import ProbeSchedule, Round, choose_helpers, look_for
from registry.members.suspicion import Awareness, Suspicion
from registry.records import PeerId, Version
from registry.settings import RegistrySettings

ROUNDS = 32
"""Rounds of probes under way at one time; in a great failure the others wait."""

FEW = 5
"""Up to so many live nodes the heartbeat's interval is the setting; then it grows with their number."""

LONGEST_LEASE = 7 * 86_400.0
"""Seconds of silence that end a node among however many: from there on heartbeats become no rarer."""

RARELY = 15.0
"""The greatest time between two tries to reach a node that lives out of our reach, as a multiple of `probe`."""

GROWTH = 8.0
"""That time is this part of how long it has been out of reach: one that comes back waits about as long again."""

LOOK = 1.0
"""Seconds between two looks at the same node for the sake of requests that wait for it."""

# What a round of probes did not find counts as long as it runs: an answer has ended it.
_OF_ROUNDS = frozenset({Evidence.MISSED, Evidence.UNREACHED})
_NEVER, _FOREVER = float("-inf"), float("inf")


class Membership:
    """The pulses of all other nodes, and the probes that are due."""

    def __init__(self, settings: RegistrySettings, jitter: Chance) -> None:
        self.patience = Awareness()
        self.rarity = 1.0
        self._settings = settings
        self._jitter = jitter
        self._pulses = MemberDeadlines()
        self._turns = ProbeSchedule(settings, jitter)
        self._gone: set[PeerId] = set()
        self._pending: dict[PeerId, float] = {}
        self._running: dict[PeerId, float] = {}
        self._looked: dict[PeerId, float] = {}
        self._doubts = Suspicion(settings, jitter)
        self._awake = _NEVER
        self._factor = 1.0

    @property
    def pulses(self) -> Mapping[PeerId, Pulse]:
        """The pulse of every node that is followed."""
        return self._pulses

    # Who is followed.

    def restore(self, node: PeerId, now: float, *, beat: tuple[Version, int] | None = None) -> None:
        """Follow a node that the store remembers; it counts as lost until it is heard."""
        lost = Pulse(Status.LOST, heard=_NEVER, since=now, why=Evidence.SILENCE)
        if beat is not None:
            lost = replace(lost, version=beat[0], beat=beat[1])
        if node not in self._pulses:
            self._pulses.put(node, lost)

    def follow(self, node: PeerId, *, heard: float, now: float, left: bool) -> None:
        """Take in a newer word of a node, confirmed at `heard`, maybe by somebody else."""
        pulse = self._pulses.get(node)
        # A newer word proves life only as far as it is fresh: a sync may bring one from long ago.
        if pulse is None or heard > pulse.heard:
            first = first_pulse(heard=heard, now=now, lease=self.lease)
            self._pulses.put(node, first if pulse is None else _carry(pulse, first))
        # Who said goodbye is not looked for.
        (self._gone.add if left else self._gone.discard)(node)
        if left or self._pulses[node].contact is Status.ALIVE:
            self._settle(node)
        self._go_on(node, now)

    def forget(self, node: PeerId) -> None:
        """Follow a node no more."""
        self._pulses.remove(node)
        self._gone.discard(node)
        self._settle(node)
        self._doubts.forget(node)

    # What is seen of them.

    def observe(
        self, node: PeerId, evidence: Evidence, now: float, *, asked: float | None = None
    ) -> bool:
        """Take in evidence; return whether the node is in another state now. Strangers are not followed.

        An answer is as old as its question, which was put at `asked`: it may have waited to be read.
        """
        if evidence is Evidence.LINKED:
            self._turns.join(node)
        elif evidence is Evidence.PARTED:
            self._turns.part(node)
            self._doubts.parted(node, now)
        before = self._pulses.get(node)
        if before is None or (evidence in _OF_ROUNDS and node not in self._running):
            return False
        if self._is_outdated(node, before, evidence, asked):
            return False
        spoke = evidence in _OF_ROUNDS and self._spoke(node, before, now)
        after = before.barred(evidence, now) if spoke else before.after(evidence, now)
        self._pulses.put(node, after)
        self._note(node, evidence, now)
        if evidence in OPENS:
            self._settle(node)
        elif evidence in LIFE and after.contact is Status.ALIVE and node not in self._looked:
            self._pending.pop(node, None)
        elif evidence is Evidence.LINKED and after.contact is not Status.ALIVE:
            self._soon(node, now)
        self._go_on(node, now)
        return after.contact is not before.contact

    def told(self, node: PeerId, heard: float, now: float) -> bool:
        """Take in that a peer heard a node lately; it counts for those that we never heard since our start."""
        pulse = self._pulses.get(node)
        if pulse is None or pulse.heard > _NEVER or heard + self.lease <= now:
            return False
        self._pulses.put(node, replace(pulse, heard=heard).after(Evidence.TOLD, now))
        return self._pulses[node].contact is not pulse.contact

    def accuse(self, node: PeerId, now: float) -> None:
        """Take in that another node cannot reach this one: look for ourselves, unless it speaks first."""
        pulse = self._pulses.get(node)
        if pulse is None or node in self._gone:
            return
        look = self._doubts.hear(node, now)
        if look <= now:
            self._pulses.put(node, replace(pulse, accused=now))
        if pulse.contact is Status.ALIVE:
            wait = self._settings.probe_timeout * (0.25 + 0.5 * self._jitter())
            self._pending.setdefault(node, look + wait)

    def look(self, node: PeerId, now: float) -> bool:
        """Probe a node at once because a request waits for it; return whether that is due."""
        pulse = self._pulses.get(node)
        known = pulse is not None and pulse.contact is not Status.LOST and node not in self._gone
        if not known or now - self._looked.get(node, _NEVER) < LOOK:
            return False
        self._looked[node] = now
        self._soon(node, now)
        return True

    def silent(self, node: PeerId) -> bool:
        """Say whether a node left our own probe unanswered, and has not answered since."""
        pulse = self._pulses.get(node)
        return pulse is not None and pulse.shut in _OF_ROUNDS

    def beat(self, node: PeerId, version: Version, beat: int) -> None:
        """Remember the newest heartbeat of a node."""
        self._pulses.put(node, replace(self._pulses[node], beat=beat, version=version))

    def stalled(self, seconds: float, now: float) -> None:
        """Take in that we ourselves stood still: what nobody could tell us meanwhile is no silence."""
        self.patience.stalled(seconds, now)
        self._factor = self.patience.factor(now)
        self._awake = now

    # What time does.

    @property
    def lease(self) -> float:
        """Seconds of silence that end a node, as rare as heartbeats are now."""
        return self._settings.lease * self.rarity

    def tick(self, now: float) -> frozenset[PeerId]:
        """Notice who fell silent; return them."""
        rarest = max(LONGEST_LEASE / self._settings.lease, 1.0)
        self.rarity = min(max((self._pulses.living + 1) / FEW, 1.0), rarest)
        self._factor = self.patience.factor(now)
        # The shell ends them long before; should it not, the node gets another round.
        for node in [n for n, began in self._running.items() if self._overdue(began) <= now]:
            self.ended(node, now)
        for node in [n for n, at in self._looked.items() if now - at > LOOK]:
            del self._looked[node]
        self._doubts.tick(now)
        changed = self._pulses.pass_time(now, **self._times())
        for node in changed:
            self._rest(node)
        return frozenset(changed)

    def probes(self, now: float) -> list[PeerId]:
        """Begin the rounds of probes that are due, and name their nodes; `round` says what to do, `ended` ends them."""
        free = ROUNDS - len(self._running)
        due = [n for n, at in self._pending.items() if at <= now and n not in self._running][:free]
        if len(due) < free and (turn := self._turn()) is not None and turn[1] <= now:
            due.append(turn[0])
            self._turns.take(turn[0], now)
        for node in due:
            self._running[node] = now
            self._pending.pop(node, None)
        return due

    def round(self, node: PeerId, connected: Mapping[PeerId, float]) -> Round:
        """Say what to do in a round; `connected` are the peers that can be asked, each with its round trip."""
        if node not in self._running:
            return
        helpers = choose_helpers(connected, node, self._pulses[node].proved_by, self._jitter)
        linked, dial = node in connected, node in self._looked
        yield from look_for(self._pulses[node], linked=linked, helpers=helpers, dial=dial)

    def proved(self, node: PeerId, helper: PeerId) -> None:
        """Remember who got a proof of life from a node: that one is asked first again."""
        if node in self._pulses:
            self._pulses.put(node, replace(self._pulses[node], proved_by=helper))

    def ended(self, node: PeerId, now: float) -> None:
        """End a round, and plan the next while there is a reason."""
        if self._running.pop(node, None) is None:
            return
        match self._pulses[node].contact:
            case Status.SUSPECT:
                wait = self._settings.probe * (0.5 + 0.5 * self._jitter())
                self._pending.setdefault(node, now + wait)
            case Status.UNREACHABLE:
                self._go_on(node, now)
            case Status.ALIVE | Status.LOST:
                pass

    def doubts(self, now: float) -> list[PeerId]:
        """Name the nodes that the others should look for too, each once; while we mistrust ourselves they wait."""
        return self._doubts.said(now) if self._factor == 1.0 else []

    def due(self) -> float:
        """Return when something is next to be done."""
        found = [self._pulses.due(**self._times())]
        if self._factor == 1.0:
            found.append(self._doubts.due())
        found += map(self._overdue, self._running.values())
        if len(self._running) >= ROUNDS:
            return min(found)
        turn = self._turn()
        found += (at for node, at in self._pending.items() if node not in self._running)
        return min(*found, turn[1] if turn else _FOREVER)

    def lost(self) -> list[PeerId]:
        """List who counts as lost, the one that was heard longest ago first."""
        return self._pulses.lost

    def never_heard(self) -> bool:
        """Say whether there are nodes that gave no sign of life since our start, and have not left."""
        return any(p.heard == _NEVER and n not in self._gone for n, p in self._pulses.items())

    # How.

    def _overdue(self, began: float) -> float:
        longest = self._settings.probe + 10 * self._settings.probe_timeout
        return max(began, self._awake) + longest

    def _times(self) -> dict[str, float]:
        suspicion = self._settings.suspicion * self._factor
        return {"lease": self.lease, "suspicion": suspicion, "awake": self._awake}

    def _turn(self) -> tuple[PeerId, float] | None:
        return self._turns.next(self._pulses, self._pending, self._running)

    def _is_outdated(
        self, node: PeerId, pulse: Pulse, evidence: Evidence, asked: float | None
    ) -> bool:
        # What came over a connection may be older than its end, and nobody probes in turn whom it would make alive.
        if node in self._turns.linked or pulse.contact is Status.ALIVE:
            return False
        return evidence is Evidence.ASKED or (asked is not None and asked < pulse.since)

    def _spoke(self, node: PeerId, pulse: Pulse, now: float) -> bool:
        # Whom we do not reach anyway is doubted for its silence to all, not for ours.
        if pulse.contact is Status.UNREACHABLE:
            return now - pulse.heard < UNPROBED * self._settings.suspicion
        return pulse.heard > self._running[node]

    def _note(self, node: PeerId, evidence: Evidence, now: float) -> None:
        pulse = self._pulses[node]
        lost = pulse.contact is Status.LOST
        if evidence is Evidence.ANSWERED:
            self.patience.note(node, answered=True, now=now)
        elif evidence is Evidence.MISSED and node in self._turns.linked and not lost:
            self.patience.note(node, answered=False, now=now)
        elif evidence is Evidence.UNREACHED:
            # Who is silent only to us may say so itself when it is doubted aloud.
            if now - pulse.heard > self._settings.suspicion or pulse.contact is Status.SUSPECT:
                linked = node in self._turns.linked
                self._doubts.unreached(node, now, heard=pulse.heard, linked=linked)
        elif evidence in LIFE:
            self._doubts.settle(node)

    def _go_on(self, node: PeerId, now: float) -> None:
        """Have a node looked for that is in doubt or out of reach."""
        pulse = self._pulses[node]
        if node in self._running or node in self._gone:
            return
        if pulse.contact is Status.SUSPECT:
            self._pending.setdefault(node, now)
        elif pulse.contact is Status.UNREACHABLE:
            probe = self._settings.probe
            wait = min(max((now - pulse.since) / GROWTH, probe), RARELY * probe)
            self._pending.setdefault(node, now + wait * (0.9 + 0.2 * self._jitter()))

    def _soon(self, node: PeerId, now: float) -> None:
        if node not in self._running and node not in self._gone:
            self._pending[node] = min(now, self._pending.get(node, now))

    def _settle(self, node: PeerId) -> None:
        self._doubts.settle(node)
        self._rest(node)

    def _rest(self, node: PeerId) -> None:
        self._pending.pop(node, None)
        self._running.pop(node, None)


def _carry(pulse: Pulse, fresh: Pulse) -> Pulse:
    kept = replace(pulse, heard=fresh.heard)
    # A word from before the failure that we saw ourselves does not outweigh it.
    outdated = pulse.why is not Evidence.SILENCE and fresh.heard <= pulse.since
    if fresh.contact is Status.LOST or outdated:
        return kept
    # Heard of by others it lives; that we reach it is another question.
    return replace(pulse.after(fresh.why, fresh.since), heard=fresh.heard)
