"""Validator of frames: those that their publishers signed are taken, and not too many of them."""

from dataclasses import dataclass

import pytest

from registry import wire
from registry.catalog import Catalog
from registry.intake.access_list import AccessList, access_list_of
from registry.intake.newcomers import AT_ONCE
from registry.intake.rate import FRAME_COST
from registry.intake.validator import FORWARDED_AT_ONCE, Validator
from registry.mesh import Verdict
from registry.records import Heartbeat, PeerId, Record, Service, Version
from registry.settings import RegistrySettings
from registry.signing import Identity
from tests.strategies import IDENTITIES

A, B, C = IDENTITIES[:3]


@dataclass(frozen=True)
class Nodes:
    access: AccessList
    catalog: Catalog


def gate(
    *identities: Identity, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()
) -> Validator:
    records = (wire.encode_record(Record(i.peer, Version(1, 1)), i) for i in identities)
    nodes = Nodes(access_list_of(A.peer, allow=allow, deny=deny), Catalog().merge(records))
    return Validator(RegistrySettings(), nodes, now=lambda: 0.0)


def word(owner: Identity, models: int = 1) -> bytes:
    services = tuple(Service("p", f"m{n}") for n in range(models))
    return wire.encode_record(Record(owner.peer, Version(1, 1), services=services), owner).frame


def test_a_good_frame_of_its_publisher_is_taken_whichever_peer_hands_it_over() -> None:
    assert gate(B).judge(C.peer, B.peer, word(B)) is Verdict.TAKE


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        word(B)[:98],
        word(B)[:-1],
        word(B)[:34] + bytes(64) + word(B)[98:],
        word(C),
        bytes(300_000),
        wire.encode_proof(bytes(16), B),
    ],
    ids=["empty", "no body", "cut", "no signature", "another's", "too long", "a proof"],
)
def test_a_frame_that_cannot_be_believed_is_an_offence_and_a_proof_is_dropped(frame: bytes) -> None:
    validator = gate(B, C)
    expected = Verdict.DROP if frame[1:2] == bytes([wire.PROOF]) else Verdict.OFFENCE
    assert validator.judge(C.peer, B.peer, frame) is expected
    assert validator.counters["frames_bad"] == (expected is Verdict.OFFENCE)


@pytest.mark.parametrize("head", [b"\x02\x01", b"\x01\x63"], ids=["version", "kind"])
def test_a_frame_of_a_newer_version_is_dropped_without_blame(head: bytes) -> None:
    validator = gate(B)
    assert validator.judge(C.peer, B.peer, head + word(B)[2:]) is Verdict.DROP
    assert validator.counters["frames_unknown"] == 1


def test_a_denied_peer_is_neither_heard_nor_passed_on() -> None:
    validator = gate(B, C, deny=(B.peer,))
    assert validator.judge(B.peer, C.peer, word(C)) is Verdict.DROP
    assert validator.judge(C.peer, B.peer, word(B)) is Verdict.DROP
    assert validator.judge(C.peer, C.peer, word(C)) is Verdict.TAKE
    assert validator.counters["kept_out"] == 2
    assert validator.kept_out.take() == {B.peer: "in registry.deny"}


BEAT = wire.encode_heartbeat(Heartbeat(B.peer, Version(1, 1), 1), B)


@pytest.mark.parametrize("models", [0, pytest.param(1_900, marks=pytest.mark.slow)])
def test_frames_of_a_neighbour_are_limited_and_large_ones_count_for_more(models: int) -> None:
    owners = [Identity(n.to_bytes(32)) for n in range(1_000, 1_020)] if models else [B]
    frames = [word(owner, models) for owner in owners] if models else [BEAT]
    validator = gate(*owners)
    passed = sum(
        validator.judge(C.peer, owner.peer, frame) is Verdict.TAKE
        for _ in range(2_100 // len(owners))
        for owner, frame in zip(owners, frames, strict=True)
    )
    assert passed == int(FORWARDED_AT_ONCE / (1 + len(frames[0]) / FRAME_COST))
    fresh = PeerId("another neighbour")
    assert validator.judge(fresh, owners[-1].peer, frames[-1]) is Verdict.TAKE


def test_long_frames_of_one_author_are_limited_and_short_ones_are_all_passed_on() -> None:
    validator, long = gate(B), word(B, 1_900)
    neighbours = [PeerId(f"neighbour {n}") for n in range(100)]
    passed = sum(validator.judge(via, B.peer, long) is Verdict.TAKE for via in neighbours)
    assert passed == int(10 * RegistrySettings().frames_per_second / (len(long) / FRAME_COST))
    assert validator.counters["frames_dropped"] == len(neighbours) - passed
    assert all(validator.judge(via, B.peer, BEAT) is Verdict.TAKE for via in neighbours)


def test_strangers_are_passed_on_a_few_at_a_time() -> None:
    validator = gate()
    owners = [Identity(n.to_bytes(32)) for n in range(1_000, 1_150)]
    verdicts = [validator.judge(C.peer, owner.peer, word(owner)) for owner in owners]
    assert verdicts == [Verdict.TAKE] * AT_ONCE + [Verdict.DROP] * 50
    assert validator.counters["strangers_refused"] == 50
