"""Which of the nodes that we know live? One pulse for each, moved by evidence and by time. No I/O."""

from collections.abc import Mapping
from dataclasses import replace

from registry.liveness import Contact, Evidence, Pulse, first_pulse
from registry.records import PeerId, Version
from registry.settings import RegistrySettings


class Membership:
    """The pulses of all other nodes."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._pulses: dict[PeerId, Pulse] = {}

    @property
    def pulses(self) -> Mapping[PeerId, Pulse]:
        """The pulse of every node that is followed."""
        return self._pulses

    def restore(self, node: PeerId, now: float) -> None:
        """Follow a node that the store remembers; it counts as lost until it is heard."""
        lost = Pulse(Contact.LOST, heard=float("-inf"), since=now, why=Evidence.SILENCE)
        self._pulses.setdefault(node, lost)

    def follow(self, node: PeerId, *, heard: float, now: float) -> None:
        """Take in a newer word of a node, confirmed at `heard`, maybe by somebody else."""
        pulse = self._pulses.get(node)
        # A newer word proves life only as far as it is fresh: a sync may bring one from long ago.
        if pulse is None or heard > pulse.heard:
            first = first_pulse(heard=heard, now=now, lease=self._settings.lease)
            self._pulses[node] = first if pulse is None else _carry(pulse, first)

    def forget(self, node: PeerId) -> None:
        """Follow a node no more."""
        del self._pulses[node]

    def observe(self, node: PeerId, evidence: Evidence, now: float) -> bool:
        """Take in evidence; return whether the node is in another state now. Strangers are not followed."""
        pulse = self._pulses.get(node)
        if pulse is None:
            return False
        self._pulses[node] = pulse.after(evidence, now)
        return self._pulses[node].contact is not pulse.contact

    def beat(self, node: PeerId, version: Version, beat: int) -> None:
        """Remember the newest heartbeat of a node."""
        self._pulses[node] = replace(self._pulses[node], beat=beat, version=version)

    def tick(self, now: float) -> frozenset[PeerId]:
        """Notice who fell silent; return them."""
        return frozenset(node for node in self._pulses if self._pass_time(node, now))

    def due(self) -> float:
        """Return when the mere passing of time next changes something."""
        settings = self._settings
        return min(
            (p.due(lease=settings.lease, suspicion=settings.suspicion) for p in self._pulses.values()),
            default=float("inf"),
        )  # fmt: skip

    def lost(self) -> list[PeerId]:
        """List who counts as lost, the one that was heard longest ago first."""
        gone = (node for node, pulse in self._pulses.items() if pulse.contact is Contact.LOST)
        return sorted(gone, key=lambda node: self._pulses[node].heard)

    def _pass_time(self, node: PeerId, now: float) -> bool:
        before = self._pulses[node]
        after = before.at(now, lease=self._settings.lease, suspicion=self._settings.suspicion)
        self._pulses[node] = after
        return after is not before


def _carry(pulse: Pulse, fresh: Pulse) -> Pulse:
    kept = replace(pulse, heard=fresh.heard)
    # A word from before the failure that we saw ourselves does not outweigh it.
    outdated = pulse.why is not Evidence.SILENCE and fresh.heard <= pulse.since
    if fresh.contact is pulse.contact or fresh.contact is Contact.LOST or outdated:
        return kept
    return replace(kept, contact=fresh.contact, since=fresh.since, why=fresh.why)
