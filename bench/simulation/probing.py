"""Does that node live? The rounds of `registry.probing` as events in virtual time, with the questions of the real ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from registry import sync, wire
from registry.errors import InvalidFrame
from registry.liveness import Evidence
from registry.probing import HELPERS, PROVE, VOUCH
from registry.records import PeerId

if TYPE_CHECKING:
    from bench.simulation.member import Member
    from bench.simulation.world import World

# A dial to a silent machine is given up after so many times `registry.probe_timeout`, as the service does.
DIALS_PER_PROBE = 2.0

Answered = Callable[[bytes, float], None]
"""Told an answer once it is there, and the time."""


class Round:
    """One round of probes: directly, then through others, then by dialling."""

    def __init__(self, member: "Member", world: "World", node: PeerId) -> None:
        self._member = member
        self._world = world
        self._node = node
        self._other = world.number(node)
        self._life = member.life
        self._linked = self._other in world.overlay.links[member.number]
        self._awaited = 0
        world.counters["probes"] += 1

    def begin(self, now: float) -> None:
        """Ask the node itself where it is connected, else others at once."""
        if not self._linked:
            self._through_others(now)
            return
        question = sync.digest_question(self._member.replica)
        wait = self.patience(self._other)
        self._world.ask(
            self._member, self._other, question, self._directly, self._missed, within=wait
        )

    def patience(self, other: int) -> float:
        """Return how long a connected peer may take to answer."""
        trip = self._world.overlay.links[self._member.number].get(other, 0.0)
        return self._world.settings.probe_timeout + 4 * 2 * trip

    def _directly(self, _: PeerId, reply: bytes, now: float) -> None:
        if not self._stands():
            return
        member = self._member
        member.observe(self._node, Evidence.ANSWERED, now)
        if reply == sync.EQUAL and not member.replica.lacks_hearsay():
            member.syncs += 1
        else:
            member.want(self._other, now)

    def _missed(self, now: float) -> None:
        if self._stands():
            self._member.observe(self._node, Evidence.MISSED, now)
            self._through_others(now)

    def _through_others(self, now: float) -> None:
        links = [o for o in self._world.overlay.links[self._member.number] if o != self._other]
        helpers = sorted(links, key=lambda _: self._world.rng.random())[:HELPERS]
        self._awaited = len(helpers)
        if not helpers:
            self._nobody(now)
        for helper in helpers:
            challenge = self._world.rng.randbytes(wire.CHALLENGE_BYTES)
            question = VOUCH + challenge + self._node.encode()
            self._world.ask(
                self._member,
                helper,
                question,
                lambda _, reply, then, challenge=challenge: self._heard(reply, challenge, then),
                self._one_less,
                within=2 * self.patience(helper),
            )

    def _heard(self, reply: bytes, challenge: bytes, now: float) -> None:
        if not self._stands():
            return
        try:
            wire.check_proof(reply, node=self._node, challenge=challenge)
        except InvalidFrame:
            self._one_less(now)
        else:
            self._awaited = -1
            self._member.observe(self._node, Evidence.PROVEN, now)

    def _one_less(self, now: float) -> None:
        self._awaited -= 1
        if self._stands() and self._awaited == 0:
            self._nobody(now)

    def _nobody(self, now: float) -> None:
        if self._linked:
            self._unreached(now)
            return
        self._member.observe(self._node, Evidence.MISSED, now)
        give_up = DIALS_PER_PROBE * self._world.settings.probe_timeout
        self._world.dialling.call(
            self._member.number, self._other, within=give_up, failed=self._unreached
        )

    def _unreached(self, now: float) -> None:
        if not self._stands():
            return
        self._world.counters["probes_failed"] += 1
        self._member.observe(self._node, Evidence.UNREACHED, now)
        if self._linked:
            self._world.unlink(self._member.number, self._other, now)

    def _stands(self) -> bool:
        return self._member.life == self._life


def vouch(
    helper: "Member", world: "World", question: bytes, answered: Answered, now: float
) -> None:
    """Have a helper pass a challenge on, and `answered` be told what came of it: a proof, or nothing."""
    challenge = question[1 : 1 + wire.CHALLENGE_BYTES]
    about = world.number(wire.peer_named(question[1 + wire.CHALLENGE_BYTES :]))
    if about == helper.number:
        answered(helper.replica.prove(challenge), now)
        return
    trip = world.overlay.links[helper.number].get(about)
    if trip is None:
        answered(b"", now)
        return
    world.ask(
        helper,
        about,
        PROVE + challenge,
        lambda _, reply, then: answered(reply, then),
        lambda then: answered(b"", then),
        within=world.settings.probe_timeout + 8 * trip,
    )
