"""Admission: a node does not hear and answer every peer, nor always, and bars one that offends again and again."""

import logging
from collections import Counter

import pytest

from registry.admission import (
    BARRED_SECONDS,
    LIE,
    OFFENCES,
    QUESTIONS_AT_ONCE,
    Admission,
    Penalties,
)
from registry.errors import LimitReached, PeerUnreachable
from registry.intake.access_list import access_list_of
from registry.records import PeerId

LIAR, FRIEND, KEPT_OUT = map(PeerId, ("liar", "friend", "kept out"))


class Scene:
    """Scene with the part of a mesh that admission needs: `disconnect`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self.cut: list[PeerId] = []
        self.admission = Admission(
            access_list_of(PeerId("own"), allow=(), deny=(KEPT_OUT,)),
            self,
            now=lambda: self.now,
            counters=self.counters,
        )

    async def disconnect(self, peer: PeerId) -> None:
        self.cut.append(peer)
        raise PeerUnreachable("it has gone by itself")


def test_a_denied_peer_may_ask_nothing() -> None:
    scene = Scene()
    with pytest.raises(LimitReached):
        scene.admission.require_admitted(KEPT_OUT)
    assert scene.counters["kept_out"] == 1
    assert scene.admission.kept_out.take() == {KEPT_OUT: "in registry.deny"}
    assert scene.admission.kept_out.take() == {}


def test_the_questions_of_each_peer_are_limited_separately(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    for _ in range(int(QUESTIONS_AT_ONCE)):
        scene.admission.require_admitted(LIAR)
    with caplog.at_level(logging.WARNING), pytest.raises(LimitReached):
        scene.admission.require_admitted(LIAR)
    scene.admission.require_admitted(FRIEND)
    assert scene.counters["questions_refused"] == 1
    assert "asks too often" in caplog.text


async def test_a_peer_that_offends_again_and_again_is_cut_off_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    with caplog.at_level(logging.WARNING):
        for _ in range(OFFENCES + 50):
            await scene.admission.note_offence(LIAR)
    assert scene.cut == [LIAR]
    assert (scene.counters["offences"], scene.counters["barred"]) == (OFFENCES + 50, 1)
    assert caplog.text.count("disconnected") == 1
    assert not scene.admission.admits(LIAR)
    assert scene.admission.kept_out.take() == {LIAR: "too many malformed or forged frames"}
    assert scene.admission.admits(FRIEND)
    scene.now = BARRED_SECONDS
    assert scene.admission.admits(LIAR)


async def test_four_wrong_answers_are_forgiven_and_not_five() -> None:
    scene = Scene()
    for _ in range(4):
        await scene.admission.note_offence(LIAR, weight=LIE)
    assert scene.admission.admits(LIAR)
    await scene.admission.note_offence(LIAR, weight=LIE)
    assert scene.cut == [LIAR]


OTHER = PeerId("other")


def test_a_few_offences_are_forgiven_and_the_next_bars_a_peer_once() -> None:
    blame = Penalties()
    assert not any(blame.note_offence(LIAR, 0.0) for _ in range(OFFENCES))
    assert not blame.is_barred(LIAR, 0.0)
    assert blame.note_offence(LIAR, 0.0)
    assert not blame.note_offence(LIAR, 1.0)
    assert blame.is_barred(LIAR, 1.0)
    assert not blame.is_barred(OTHER, 1.0)


def test_a_barred_peer_is_heard_again_after_its_time() -> None:
    blame = Penalties()
    for _ in range(OFFENCES + 1):
        blame.note_offence(LIAR, 0.0)
    assert blame.is_barred(LIAR, BARRED_SECONDS - 0.1)
    assert not blame.is_barred(LIAR, BARRED_SECONDS)


def test_a_fault_now_and_then_never_bars_a_peer() -> None:
    blame = Penalties()
    assert not any(blame.note_offence(LIAR, 10.0 * n) for n in range(1_000))
