"""Probes in virtual time: `registry.members.probe` decides the steps; this module gives them their duration."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from registry import sync, wire
from registry.errors import InvalidFrame
from registry.members.liveness import Evidence
from registry.members.probe import (
    CloseConnection,
    Found,
    NoteEvidence,
    OwnProbe,
    ProbeStep,
    answer_timeout,
    dial_timeout,
)
from registry.prober import PROVE, VOUCH
from registry.records import PeerId

if TYPE_CHECKING:
    from bench.simulation.member import Member
    from bench.simulation.world import World

Answered = Callable[[bytes, float], None]
"""Callback that gets an answer and the time of its arrival."""


class Round:
    """One round of probes of one node."""

    def __init__(self, member: "Member", world: "World", node: PeerId) -> None:
        self._member = member
        self._world = world
        self._node = node
        self._other = world.number(node)
        self._life = member.life
        self._going = member.replica.members.probe_round(node, self._trips())
        self._open = 0
        self._found = Found()
        world.counters["probes"] += 1

    def begin(self, now: float) -> None:
        """Do the first step."""
        self._go_on(None, now)

    def _go_on(self, result: Found | None, now: float) -> None:
        while self._member.life == self._life:
            try:
                step = next(self._going) if result is None else self._going.send(result)
            except StopIteration:
                self._member.looked(self._node, now)
                return
            result = self._found
            match step:
                case ProbeStep(own_probe, intermediaries):
                    self._attempt(
                        own_probe,
                        [self._world.number(intermediary) for intermediary in intermediaries],
                        now,
                    )
                    return
                case NoteEvidence(evidence):
                    self._world.counters["probes_failed"] += evidence is Evidence.UNREACHED
                    self._member.observe(self._node, evidence, now)
                case CloseConnection():
                    self._world.unlink(self._member.number, self._other, now)

    def _attempt(self, own_probe: OwnProbe, intermediaries: list[int], now: float) -> None:
        self._found = Found()
        # One extra is open until all have begun, so that an immediate refusal does not end the attempt.
        self._open = 1 + len(intermediaries) + (own_probe is not OwnProbe.NOTHING)
        for intermediary in intermediaries:
            self._through(intermediary, now)
        if own_probe is OwnProbe.ASK:
            self._ask(now)
        elif own_probe is OwnProbe.DIAL:
            within = dial_timeout(self._world.settings.probe_timeout, self._trips())
            self._world.dialers.call(
                self._member.number,
                self._other,
                within=within,
                failed=self._one_less,
                stands=self._ask,
            )
        self._one_less(now)

    def _ask(self, now: float) -> None:
        question = sync.digest_question(self._member.replica)
        self._world.ask(
            self._member,
            self._other,
            question,
            lambda _, reply, then: self._directly(reply, now, then),
            self._one_less,
            within=self._patience(self._other),
        )

    def _directly(self, reply: bytes, asked_at: float, now: float) -> None:
        if self._member.life != self._life:
            return
        member = self._member
        member.observe(self._node, Evidence.ANSWERED, now, asked_at=asked_at)
        if reply == sync.EQUAL and not member.replica.lacks_hearsay():
            member.syncs += 1
        else:
            member.want(self._other, now)
        self._open = 0
        self._go_on(Found(reached=True), now)

    def _through(self, intermediary: int, now: float) -> None:
        challenge = self._world.rng.randbytes(wire.CHALLENGE_BYTES)
        self._world.ask(
            self._member,
            intermediary,
            VOUCH + challenge + self._node.encode(),
            lambda peer, reply, then: self._heard(peer, reply, challenge, now, then),
            self._one_less,
            within=2 * self._patience(intermediary),
        )

    def _heard(
        self, intermediary: PeerId, reply: bytes, challenge: bytes, asked_at: float, now: float
    ) -> None:
        # A round that has already gone on no longer waits for it.
        if self._member.life != self._life or not self._open:
            return
        try:
            wire.check_proof(reply, node=self._node, challenge=challenge)
        except InvalidFrame:
            self._one_less(now)
            return
        proved = self._member.replica.note_proof(self._node, intermediary, now, asked_at=asked_at)
        self._member.perform(proved, now)
        self._found = Found(proven=True)
        self._one_less(now)

    def _one_less(self, now: float) -> None:
        if not self._open:
            return
        self._open -= 1
        if not self._open:
            self._go_on(self._found, now)

    def _trips(self) -> dict[PeerId, float]:
        links = self._world.overlay.links[self._member.number]
        return {self._world.peer(other): 2 * trip for other, trip in links.items()}

    def _patience(self, other: int) -> float:
        trip = self._world.overlay.links[self._member.number].get(other, 0.0)
        return answer_timeout(self._world.settings.probe_timeout, 2 * trip)


def vouch(
    intermediary: "Member", world: "World", question: bytes, answered: Answered, now: float
) -> None:
    """Let an intermediary pass a challenge on, and call `answered` with the proof, or with no bytes."""
    challenge = question[1 : 1 + wire.CHALLENGE_BYTES]
    about = world.number(wire.peer_named(question[1 + wire.CHALLENGE_BYTES :]))
    if about == intermediary.number:
        answered(intermediary.replica.sign_challenge(challenge), now)
        return
    trip = world.overlay.links[intermediary.number].get(about)
    if trip is None:
        answered(b"", now)
        return
    world.ask(
        intermediary,
        about,
        PROVE + challenge,
        lambda _, reply, then: answered(reply, then),
        lambda then: answered(b"", then),
        within=answer_timeout(world.settings.probe_timeout, 2 * trip),
    )
