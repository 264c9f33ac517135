"""Which of the nodes that we know live, and whom do we ask now? One pulse for each node, and the probes. No I/O.

Connected peers are probed in turn, the one that was silent longest first, so the traffic of a node does not grow with the
mesh. Whoever is in doubt is probed at once and again, directly and through others. What another node says of a third
one, a doubt, only ever makes us look for ourselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from registry.liveness import LIFE, Contact, Evidence, Pulse, first_pulse
from registry.patience import Patience
from registry.records import PeerId, Version
from registry.settings import RegistrySettings

ROUNDS = 32
"""Rounds of probes under way at one time; in a great failure the others wait."""

FEW = 5
"""Up to so many live nodes the heartbeat's interval is the setting; then it grows with their number."""

RAREST = 60.0
"""The greatest factor on that interval."""

_SPARSE = 2.5  # the greatest factor on the time between probes, reached with ten connected peers
# What a round of probes finds counts as long as it runs: a sign of life has ended it.
_OF_ROUNDS = frozenset({Evidence.MISSED, Evidence.UNREACHED})
_NEVER, _FOREVER = float("-inf"), float("inf")


class Membership:
    """The pulses of all other nodes, and the probes that are due."""

    def __init__(self, settings: RegistrySettings, jitter: Callable[[], float]) -> None:
        self.patience = Patience()
        self.rarity = 1.0
        self._settings = settings
        self._jitter = jitter
        self._pulses: dict[PeerId, Pulse] = {}
        self._linked: set[PeerId] = set()
        self._gone: set[PeerId] = set()
        self._probed: dict[PeerId, float] = {}
        self._next_turn = _NEVER
        self._pending: dict[PeerId, float] = {}
        self._running: dict[PeerId, float] = {}
        self._accused: dict[PeerId, float] = {}
        self._to_doubt: dict[PeerId, float] = {}
        self._awake = _NEVER
        self._factor = 1.0

    @property
    def pulses(self) -> Mapping[PeerId, Pulse]:
        """The pulse of every node that is followed."""
        return self._pulses

    # Who is followed.

    def restore(self, node: PeerId, now: float, *, beat: tuple[Version, int] | None = None) -> None:
        """Follow a node that the store remembers; it counts as lost until it is heard."""
        lost = Pulse(Contact.LOST, heard=_NEVER, since=now, why=Evidence.SILENCE)
        if beat is not None:
            lost = replace(lost, version=beat[0], beat=beat[1])
        self._pulses.setdefault(node, lost)

    def follow(self, node: PeerId, *, heard: float, now: float, left: bool) -> None:
        """Take in a newer word of a node, confirmed at `heard`, maybe by somebody else."""
        pulse = self._pulses.get(node)
        # A newer word proves life only as far as it is fresh: a sync may bring one from long ago.
        if pulse is None or heard > pulse.heard:
            first = first_pulse(heard=heard, now=now, lease=self.lease)
            self._pulses[node] = first if pulse is None else _carry(pulse, first)
        if self._pulses[node].contact is Contact.ALIVE:
            self._settle(node)
        # Who said goodbye is not looked for.
        (self._gone.add if left else self._gone.discard)(node)
        if left:
            self._settle(node)

    def forget(self, node: PeerId) -> None:
        """Follow a node no more."""
        del self._pulses[node]
        self._gone.discard(node)
        self._settle(node)
        self._accused.pop(node, None)

    # What is seen of them.

    def observe(self, node: PeerId, evidence: Evidence, now: float) -> bool:
        """Take in evidence; return whether the node is in another state now. Strangers are not followed."""
        if evidence is Evidence.LINKED:
            self._linked.add(node)
        elif evidence is Evidence.PARTED:
            self._linked.discard(node)
            self._probed.pop(node, None)
        before = self._pulses.get(node)
        if before is None or (evidence in _OF_ROUNDS and node not in self._running):
            return False
        after = self._pulses[node] = before.after(evidence, now)
        if evidence in LIFE:
            self._settle(node)
        self._note(node, evidence, now)
        if after.contact is Contact.SUSPECT and node not in self._gone:
            self._pending.setdefault(node, now)
            if after.unreached and not before.unreached and self._factor == 1.0:
                # Who is first among those that noticed speaks for all of them.
                self._to_doubt[node] = now + 0.5 * self._jitter() * self._settings.probe_timeout
        return after.contact is not before.contact

    def told(self, node: PeerId, heard: float, now: float) -> bool:
        """Take in that a peer heard a node lately; it counts for those that we never heard since our start."""
        pulse = self._pulses.get(node)
        if pulse is None or pulse.heard > _NEVER or heard + self.lease <= now:
            return False
        self._pulses[node] = replace(pulse, heard=heard).after(Evidence.TOLD, now)
        return self._pulses[node].contact is not pulse.contact

    def accuse(self, node: PeerId, now: float) -> None:
        """Take in that another node cannot reach this one: look for ourselves, unless it speaks first."""
        self._to_doubt.pop(node, None)
        pulse = self._pulses.get(node)
        again = now - self._accused.get(node, _NEVER) < self._settings.suspicion
        if pulse is None or pulse.contact is not Contact.ALIVE or node in self._gone or again:
            return
        self._accused[node] = now
        wait = self._settings.probe_timeout * (0.5 + 0.5 * self._jitter())
        self._pending.setdefault(node, now + wait)

    def beat(self, node: PeerId, version: Version, beat: int) -> None:
        """Remember the newest heartbeat of a node."""
        self._pulses[node] = replace(self._pulses[node], beat=beat, version=version)

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
        living = sum(pulse.contact is not Contact.LOST for pulse in self._pulses.values())
        self.rarity = min(max((living + 1) / FEW, 1.0), RAREST)
        self._factor = self.patience.factor(now)
        for node in [n for n, until in self._running.items() if until <= now]:
            del self._running[node]
        for node in [n for n, at in self._accused.items() if now - at > self._settings.suspicion]:
            del self._accused[node]
        return frozenset(node for node in self._pulses if self._pass_time(node, now))

    def probes(self, now: float) -> list[PeerId]:
        """Begin the rounds of probes that are due, and name their nodes; `observe` ends them."""
        free = ROUNDS - len(self._running)
        due = [n for n, at in self._pending.items() if at <= now and n not in self._running][:free]
        if len(due) < free and (turn := self._turn()) is not None and turn[1] <= now:
            due.append(turn[0])
            self._probed[turn[0]] = now
            self._next_turn = now + self._between_turns() * (0.9 + 0.2 * self._jitter())
        settings = self._settings
        for node in due:
            # The shell reports long before; should it not, the node gets another round.
            self._running[node] = now + settings.probe + 10 * settings.probe_timeout
            self._pending.pop(node, None)
        return due

    def doubts(self, now: float) -> list[PeerId]:
        """Name the nodes that the others should look for too: each once, and none while we mistrust ourselves."""
        due = [node for node, at in self._to_doubt.items() if at <= now]
        for node in due:
            del self._to_doubt[node]
        return due if self._factor == 1.0 else []

    def due(self) -> float:
        """Return when something is next to be done."""
        times = {"lease": self.lease, "suspicion": self._suspicion, "awake": self._awake}
        lapses = (pulse.due(**times) for pulse in self._pulses.values())
        found = [_FOREVER, *lapses, *self._to_doubt.values()]
        if len(self._running) >= ROUNDS:
            return min(*found, *self._running.values())
        turn = self._turn()
        found += (at for node, at in self._pending.items() if node not in self._running)
        return min(*found, turn[1] if turn else _FOREVER)

    def lost(self) -> list[PeerId]:
        """List who counts as lost, the one that was heard longest ago first."""
        gone = (node for node, pulse in self._pulses.items() if pulse.contact is Contact.LOST)
        return sorted(gone, key=lambda node: self._pulses[node].heard)

    def never_heard(self) -> bool:
        """Say whether there are nodes that gave no sign of life since our start, and have not left."""
        return any(p.heard == _NEVER and n not in self._gone for n, p in self._pulses.items())

    # How.

    @property
    def _suspicion(self) -> float:
        return self._settings.suspicion * self._factor

    def _turn(self) -> tuple[PeerId, float] | None:
        """Return which connected peer is probed next, and when."""
        quiet = {
            node: max(self._pulses[node].heard, self._probed.get(node, _NEVER))
            for node in self._linked
            if node in self._pulses and node not in self._pending and node not in self._running
        }
        if not quiet:
            return None
        node = min(quiet, key=lambda n: (quiet[n], n))
        return node, max(self._next_turn, quiet[node] + 1.5 * self._settings.probe)

    def _between_turns(self) -> float:
        return self._settings.probe * min(max(len(self._linked) / 4, 1.0), _SPARSE)

    def _note(self, node: PeerId, evidence: Evidence, now: float) -> None:
        match evidence:
            case Evidence.ANSWERED:
                self.patience.note(node, answered=True, now=now)
            case Evidence.MISSED if node in self._linked:
                self.patience.note(node, answered=False, now=now)
            case Evidence.UNREACHED:
                self._running.pop(node, None)
                self._pending[node] = now + self._settings.probe * (0.5 + 0.5 * self._jitter())

    def _settle(self, node: PeerId) -> None:
        for waiting in (self._pending, self._running, self._to_doubt):
            waiting.pop(node, None)

    def _pass_time(self, node: PeerId, now: float) -> bool:
        before = self._pulses[node]
        after = before.at(now, lease=self.lease, suspicion=self._suspicion, awake=self._awake)
        if after is before:
            return False
        self._pulses[node] = after
        self._settle(node)
        return True


def _carry(pulse: Pulse, fresh: Pulse) -> Pulse:
    kept = replace(pulse, heard=fresh.heard)
    # A word from before the failure that we saw ourselves does not outweigh it.
    outdated = pulse.why is not Evidence.SILENCE and fresh.heard <= pulse.since
    if fresh.contact is pulse.contact or fresh.contact is Contact.LOST or outdated:
        return kept
    return replace(kept, contact=fresh.contact, since=fresh.since, why=fresh.why)
