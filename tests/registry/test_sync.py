"""Messages of a comparison: what is written is read back, and noise is refused as an invalid frame."""

import math
import struct
from collections.abc import Callable
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import sync, wire
from registry.catalog import Signed, bucket_of
from registry.effects import Effect, Persist, RecordsKeptOut, RecordsRefused
from registry.errors import InvalidFrame
from registry.intake.newcomers import AT_ONCE
from registry.members.liveness import Evidence, Presence
from registry.records import Heartbeat, Record, Service, Version
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.sync import Held
from tests.strategies import IDENTITIES, identities, versions, words

peers = identities.map(lambda identity: identity.peer)
prints = st.binary(min_size=8, max_size=8).map(bytes.hex)
READERS = [
    sync.read_buckets,
    sync.read_wanted,
    sync.read_listing,
    sync.read_heard,
    lambda noise: [*sync.unpack(noise)],
]


@given(st.dictionaries(peers, st.builds(lambda v, f: (*v, f), versions, prints)))
def test_a_listing_is_read_back(held: dict[str, Held]) -> None:
    assert sync.read_listing(sync.write_listing(held)) == held


@given(st.lists(peers), st.lists(st.integers(0, 63), max_size=sync.BUCKETS))
def test_names_of_nodes_and_buckets_are_read_back(nodes: list[str], buckets: list[int]) -> None:
    assert sync.read_wanted(sync.write_wanted(nodes)) == nodes
    assert sync.read_buckets(sync.write_buckets(buckets)) == buckets


@given(st.lists(st.tuples(peers, st.floats(width=32, allow_nan=False))))
def test_the_nodes_that_a_peer_heard_are_read_back_whatever_their_age(
    ages: list[tuple[str, float]],
) -> None:
    assert sync.read_heard(sync.write_heard(ages)) == ages


def test_an_age_may_be_no_number() -> None:
    ((_, age),) = sync.read_heard(bytes(range(32)) + b"\x7f\xc0\x00\x00")
    assert math.isnan(age)


@pytest.mark.parametrize("read", READERS)
@given(noise=st.binary(max_size=300))
def test_noise_is_read_or_refused_as_an_invalid_frame(
    read: Callable[[bytes], object], noise: bytes
) -> None:
    with suppress(InvalidFrame):
        read(noise)


@pytest.mark.parametrize("read", READERS)
def test_a_message_that_is_too_long_is_not_read(read: Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidFrame):
        read(b" " * (sync.MAX_LISTING_BYTES + 1))


A, B, C = IDENTITIES[:3]
LLAMA = Service("p", "llama")
NOW = 1_000.0
Answer = Callable[[bytes], bytes]


def replica(owner: Identity, *records: Signed, settings: RegistrySettings | None = None) -> Replica:
    node = Replica(owner, settings or RegistrySettings(), epoch=5, jitter=lambda: 0.5)
    for signed in records:
        if signed.record.node != owner.peer:
            node.merge_record(signed, heard_at=NOW, now=NOW)
    return node


def say(owner: Identity, *services: Service, sequence: int = 1) -> Signed:
    return wire.encode_record(Record(owner.peer, Version(1, sequence), services=services), owner)


def strangers(count: int, *, bytes_each: int = 0) -> list[Signed]:
    """Return records of many nodes, as large as wished by a field that this version does not know."""
    return [padded(Identity(number.to_bytes(32)), bytes_each) for number in range(1, count + 1)]


def padded(owner: Identity, size: int) -> Signed:
    fields = {"version": [1, 1], "standing": "serving", "services": [], "later": "x" * size}
    body = orjson.dumps(fields)
    signature = owner.sign(wire.DOMAINS[wire.RECORD], body)
    signed = wire.decode(bytes((wire.VERSION, wire.RECORD)) + owner.public + signature + body)
    assert isinstance(signed, Signed)
    return signed


def exchange(asker: Replica, answer: Answer, now: float = NOW) -> tuple[list[bytes], list[Effect]]:
    """Compare once; return the questions asked and everything that the asker wants done."""
    talk = sync.compare(asker, lambda: now)
    questions: list[bytes] = []
    effects: list[Effect] = []
    step = next(talk)
    while True:
        questions.append(step.question)
        effects += step.effects
        try:
            step = talk.send(answer(step.question))
        except StopIteration as done:
            return questions, effects + done.value


def honest(peer: Replica, now: float = NOW) -> Answer:
    return lambda question: sync.answer(peer, question, now)[0]


piles = st.lists(words, max_size=10)


def test_equal_registries_cost_one_question_of_33_bytes_and_an_answer_of_one() -> None:
    one, other = replica(A, say(C, LLAMA)), replica(B, say(C, LLAMA))
    questions, effects = exchange(one, honest(other))
    assert [len(question) for question in questions] == [33]
    assert sync.answer(other, questions[0], NOW) == (b"=", [])
    assert effects == []


@given(piles, piles)
def test_any_two_registries_are_equal_after_one_exchange(a: list[Signed], b: list[Signed]) -> None:
    one, other = replica(A, *a), replica(B, *b)
    one.announce(NOW, services=[LLAMA])
    other.announce(NOW, services=[])
    exchange(one, honest(other))
    # Their own records may have been refuted on the way, which is news for the next exchange.
    exchange(one, honest(other))
    assert one.catalog == other.catalog


@given(piles, piles)
def test_an_exchange_persists_all_it_teaches_on_both_sides(
    a: list[Signed], b: list[Signed]
) -> None:
    one, other = replica(A, *a), replica(B, *b)
    before, taught = {r.peer: dict(r.catalog.held) for r in (one, other)}, []

    def answer(question: bytes) -> bytes:
        reply, effects = sync.answer(other, question, NOW)
        taught.extend(effects)
        return reply

    _, effects = exchange(one, answer)
    for peer, done in ((one, effects), (other, taught)):
        persisted = {e.signed.record.node: e.signed for e in done if isinstance(e, Persist)}
        assert before[peer.peer] | persisted == dict(peer.catalog.held)


def test_records_that_were_learned_are_handed_out_before_the_next_question() -> None:
    one, other = replica(A, *strangers(1)), replica(B, say(C, LLAMA))
    talk = sync.compare(one, lambda: NOW)
    step = next(talk)
    while not step.effects:
        assert C.peer not in one.catalog.held
        step = talk.send(honest(other)(step.question))
    assert C.peer in one.catalog.held


def test_one_exchange_carries_many_batches_both_ways() -> None:
    many = strangers(12, bytes_each=100_000)
    one, other = replica(A, *many[:6]), replica(B, *many[6:])
    questions, _ = exchange(one, honest(other))
    assert one.catalog == other.catalog
    assert len(questions) > 4
    assert max(map(len, questions)) <= sync.MAX_BATCH_BYTES + 1


def test_records_that_one_exchange_cannot_carry_come_with_the_next_ones() -> None:
    frames = strangers(70, bytes_each=200_000)
    assert 2 * len(frames[0].frame) <= sync.MAX_BATCH_BYTES < 3 * len(frames[0].frame)
    one, other = replica(A), replica(B, *frames)
    rounds = 0
    while one.catalog != other.catalog:
        count = len(one.catalog.held)
        exchange(one, honest(other))
        rounds += 1
        assert len(one.catalog.held) > count
    assert rounds == 2


def test_the_age_of_a_record_travels_so_that_a_long_dead_node_is_not_taken_for_living() -> None:
    one, other = replica(A), replica(B, say(C, LLAMA))
    exchange(one, honest(other, now=NOW + 10), now=50.0)
    assert one.member_health()[C.peer].heard == pytest.approx(40.0)
    late = replica(A)
    exchange(late, honest(other, now=NOW + RegistrySettings().lease + 1), now=50.0)
    assert late.presence(C.peer) is Presence.LOST


def test_a_node_that_a_peer_holds_for_lost_is_not_taken_for_living_on_its_word() -> None:
    one, other = replica(A), replica(B, say(C, LLAMA))
    other.tick(NOW + RegistrySettings().lease + 1)
    exchange(one, honest(other, now=NOW + 10), now=50.0)
    assert one.presence(C.peer) is Presence.LOST


def test_a_node_that_a_peer_doubts_is_not_taken_for_living_on_its_word_until_it_speaks() -> None:
    one, other = replica(A), replica(B, say(C, LLAMA))
    other.observe(C.peer, Evidence.PARTED, NOW)
    exchange(one, honest(other, now=NOW + 1), now=50.0)
    assert one.presence(C.peer) is Presence.LOST
    one.observe(C.peer, Evidence.WORD, 51.0)
    assert one.presence(C.peer) is Presence.ALIVE


def test_a_newcomer_whose_first_peer_had_lost_all_nodes_hears_from_the_next_which_live() -> None:
    one, mistaken, right = replica(A), replica(B, say(C, LLAMA)), replica(B, say(C, LLAMA))
    mistaken.tick(NOW + RegistrySettings().lease + 1)
    exchange(one, honest(mistaken, now=NOW + 10), now=50.0)
    questions, _ = exchange(one, honest(right, now=NOW + 10), now=51.0)
    assert questions[-1] == b"h"
    assert one.presence(C.peer) is Presence.ALIVE


def test_hearsay_does_not_make_a_node_younger_than_we_know_it_to_be() -> None:
    one, other = replica(A, say(C, LLAMA)), replica(B, say(C, LLAMA))
    lease = RegistrySettings().lease
    exchange(one, honest(other), now=NOW + lease - 1)
    one.tick(NOW + lease)
    assert one.presence(C.peer) is Presence.LOST


def test_the_answer_to_a_push_is_how_many_records_were_news() -> None:
    node, pushed = replica(A, say(B)), batch(say(B).frame, say(C).frame, say(IDENTITIES[3]).frame)
    assert sync.answer(node, b"P" + pushed, NOW)[0] == b"2"
    assert sync.answer(node, b"P" + pushed, NOW)[0] == b"0"


def test_a_pull_of_unknown_nodes_brings_nothing() -> None:
    question = b"p" + orjson.dumps({"nodes": [A.peer, "nobody", ""]})
    assert sync.answer(replica(B), question, NOW) == (b"", [])


# Hostile askers.


@given(st.binary(max_size=200))
def test_a_question_of_noise_is_refused_and_changes_nothing(noise: bytes) -> None:
    node = replica(A, say(C, LLAMA))
    before = node.catalog
    with suppress(InvalidFrame):
        assert sync.answer(node, noise, NOW)[1] == []
    assert node.catalog is before


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"x",
        b"l",
        b"l[]",
        b"l" + orjson.dumps({"buckets": ["1"]}),
        b"l" + orjson.dumps({"buckets": list(range(65))}),
        b"l" + b'{"buckets":' + b"[" * 100_000,
        b"l" + b'{"buckets":[' + b"1," * 1_000_000 + b"1]}",
        b"p" + orjson.dumps({"nodes": ["x" * 65]}),
        b"p" + orjson.dumps({"nodes": [1]}),
        b"p" + orjson.dumps({"nodes": ["x"] * (sync.MAX_LISTED + 1)}),
        b"p" + b" " * (sync.MAX_LISTING_BYTES + 1),
        b"Pcut",
        b"P" + struct.pack(">fI", 0.0, 2**32 - 1),
        b"P" + struct.pack(">fI", 0.0, 0),
        b"P" + bytes(sync.MAX_BATCH_BYTES + 1),
    ],
    ids=lambda question: repr(question[:24]),
)
def test_a_question_that_makes_no_sense_is_refused(question: bytes) -> None:
    with pytest.raises(InvalidFrame):
        sync.answer(replica(A), question, NOW)


def batch(*frames: bytes, age: float = 0.0) -> bytes:
    return b"".join(struct.pack(">fI", age, len(frame)) + frame for frame in frames)


GOOD = say(C, LLAMA).frame
FORGED = GOOD[:2] + B.public + GOOD[34:]
BAD_BATCHES = {
    "cut in a frame": batch(GOOD, GOOD)[:-1],
    "cut in a head": batch(GOOD) + b"\x00\x00",
    "wrong length": batch(GOOD)[:4] + struct.pack(">I", len(GOOD) - 1) + GOOD,
    "forged": batch(GOOD, FORGED),
    "heartbeat": batch(GOOD, wire.encode_heartbeat(Heartbeat(C.peer, Version(1, 1), 1), C)),
    "noise": b"noise and nothing else",
    "too large": bytes(sync.MAX_BATCH_BYTES + 1),
}


@pytest.mark.parametrize("bad", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_of_a_push_with_one_bad_frame_nothing_is_learned(bad: bytes) -> None:
    node = replica(A)
    with pytest.raises(InvalidFrame):
        sync.answer(node, b"P" + bad, NOW)
    assert not node.catalog.held


@pytest.mark.parametrize("age", [float("nan"), float("inf"), float("-inf"), -1e30, 1e30])
def test_an_absurd_age_is_no_proof_from_the_future_and_no_error(age: float) -> None:
    node = replica(A)
    sync.answer(node, b"P" + batch(GOOD, age=age), NOW)
    assert C.peer in node.catalog.held
    assert node.member_health()[C.peer].heard <= NOW
    if age != -1e30:
        assert node.presence(C.peer) is Presence.LOST


# Hostile answerers.


def lying(peer: Replica, kind: bytes, lie: bytes) -> Answer:
    return lambda question: lie if question[:1] == kind else honest(peer)(question)


BAD_LISTINGS = [
    b"",
    b"[]",
    b"{}",
    b'{"held":' + b'{"a":' * 100_000,
    *(
        orjson.dumps({"held": {node: row}})
        for node, row in [
            (C.peer, [1, 1]),
            (C.peer, [1, 1, "ab" * 8, 1]),
            (C.peer, [-1, 1, "ab" * 8]),
            (C.peer, [1, wire.MAX_COUNTER + 1, "ab" * 8]),
            (C.peer, [1e300, 1, "ab" * 8]),
            (C.peer, [True, 1, "ab" * 8]),
            (C.peer, [1, 1, "zz" * 8]),
            (C.peer, [1, 1, "ab" * 800]),
            (C.peer, None),
            ("x" * 65, [1, 1, "ab" * 8]),
        ]
    ),
    b'{"held":{"x":[' + b"9" * 300 + b',1,"abababababababab"]}}',
    b'{"held":{"\\ud800":[1,1,"abababababababab"]}}',
    orjson.dumps({"held": {str(n): [1, 1, "ab" * 8] for n in range(sync.MAX_LISTED + 1)}}),
    b" " * (sync.MAX_LISTING_BYTES + 1),
]


@pytest.mark.parametrize("lie", BAD_LISTINGS, ids=lambda lie: repr(lie[:60]))
def test_a_listing_that_makes_no_sense_changes_nothing(lie: bytes) -> None:
    one, other = replica(A), replica(B, say(C, LLAMA))
    with pytest.raises(InvalidFrame):
        exchange(one, lying(other, b"l", lie))
    assert not one.catalog.held


@pytest.mark.parametrize("lie", [b"", b"==", b"x" * 511, b"x" * 513, b"x" * 1_000_000])
def test_bucket_digests_of_another_length_change_nothing(lie: bytes) -> None:
    node = replica(A)
    with pytest.raises(InvalidFrame):
        exchange(node, lying(replica(B, say(C)), b"c", lie))


@pytest.mark.parametrize("lie", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_of_a_pulled_batch_with_one_bad_frame_nothing_is_learned(lie: bytes) -> None:
    node = replica(A)
    with pytest.raises(InvalidFrame):
        exchange(node, lying(replica(B, say(C)), b"p", lie))
    assert not node.catalog.held


def test_listing_records_that_are_never_sent_is_an_offence() -> None:
    listing = {f"nobody-{n}": [1, 1, "ab" * 8] for n in range(1_000)}
    lies = lying(replica(B, say(C)), b"l", orjson.dumps({"held": listing}))
    with pytest.raises(InvalidFrame, match="cannot be fetched"):
        exchange(replica(A), lies)


def test_one_pull_asks_for_no_more_than_one_batch_holds_and_no_more_are_looked_up() -> None:
    many = strangers(sync.MAX_IN_BATCH + 10)
    one, other = replica(A), replica(B, *many)
    questions, _ = exchange(one, honest(other))
    pulls = [orjson.loads(q[1:])["nodes"] for q in questions if q.startswith(b"p")]
    assert max(map(len, pulls)) == sync.MAX_IN_BATCH
    assert one.catalog == other.catalog
    late = {"nodes": ["nobody"] * sync.MAX_LOOKED_UP + [many[0].record.node]}
    assert sync.answer(other, b"p" + orjson.dumps(late), NOW) == (b"", [])


def test_a_peer_that_says_equal_when_it_is_not_gains_nothing() -> None:
    node = replica(A, say(C))
    assert exchange(node, lambda _: b"=") == ([b"c" + bytes.fromhex(node.catalog.digest)], [])


@given(st.lists(st.binary(max_size=600), min_size=4, max_size=4))
def test_answers_of_noise_change_nothing(noise: list[bytes]) -> None:
    node, answers = replica(A, say(C, LLAMA)), iter([*noise, b"=" * 512])
    before = node.catalog
    with suppress(InvalidFrame):
        exchange(node, lambda _: next(answers))
    assert node.catalog is before


def test_records_chosen_to_cancel_out_do_not_hide_another() -> None:
    # If bucket digests were mere XORs, some of 65 records would cancel out and never be compared.
    owners = (Identity(number.to_bytes(32)) for number in range(1, 6_000))
    bucket = [say(owner) for owner in owners if bucket_of(owner.peer) == 0][:70]
    chosen = cancelling([int.from_bytes(signed.fingerprint[:8]) for signed in bucket])
    assert chosen
    one, other = replica(A), replica(B, *(bucket[n] for n in chosen))
    exchange(one, honest(other))
    assert one.catalog == other.catalog


def cancelling(values: list[int]) -> list[int]:
    """Return places whose values XOR to 0: Gaussian elimination over 65 or more numbers of 64 bits."""
    basis: dict[int, tuple[int, int]] = {}
    for bit, start in enumerate(values):
        value, mask = start, 1 << bit
        while value and (top := value.bit_length()) in basis:
            value, mask = value ^ basis[top][0], mask ^ basis[top][1]
        if not value:
            return [n for n in range(len(values)) if mask >> n & 1]
        basis[value.bit_length()] = value, mask
    return []


CROWD = strangers(2 * AT_ONCE)


def met_by(asker: Replica, answerer: Replica) -> None:
    """Connect two replicas, of which the asker dials the other."""
    asker.note_connected(answerer.peer, NOW, chosen=True)
    answerer.note_connected(asker.peer, NOW, chosen=False)


def test_a_node_that_comes_with_a_crowd_of_strangers_is_taken_in_itself() -> None:
    newcomer, resident = replica(A, *CROWD), replica(B)
    met_by(newcomer, resident)
    newcomer.announce(NOW, services=[])
    exchange(
        newcomer, lambda question: sync.answer(resident, question, NOW, asker=newcomer.peer)[0]
    )
    assert newcomer.peer in resident.catalog.held
    assert len(resident.catalog.held) <= AT_ONCE + 2


def test_a_connected_node_is_read_where_the_strangers_before_it_took_all_the_room() -> None:
    resident = replica(B)
    resident.note_connected(C.peer, NOW, chosen=False)
    frames = [signed.frame for signed in CROWD[: AT_ONCE + 10]]
    pushed = b"P" + batch(*frames, say(C).frame)
    assert sync.answer(resident, pushed, NOW, asker=A.peer)[0] == b"%d" % (AT_ONCE + 1)
    assert C.peer in resident.catalog.held


def test_a_connected_node_is_pulled_where_there_is_room_for_no_stranger() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=3))
    exchange(node, honest(replica(B, *CROWD)))
    node.note_connected(C.peer, NOW, chosen=True)
    exchange(node, honest(replica(B, *CROWD, say(C))))
    assert C.peer in node.catalog.held


def test_a_full_registry_asks_for_one_stranger_and_takes_in_none() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=3))
    node.announce(NOW, services=[])
    exchange(node, honest(replica(B, *strangers(20))))
    assert len(node.catalog.held) == 3
    questions, effects = exchange(node, honest(replica(B, *strangers(20))))
    assert effects == []
    (pull,) = (question for question in questions if question.startswith(b"p"))
    assert len(orjson.loads(pull[1:])["nodes"]) == 1
    assert len(node.catalog.held) == 3


def test_listing_records_that_are_never_sent_is_an_offence_where_there_is_no_room_for_them() -> (
    None
):
    node = replica(A, *strangers(3), settings=RegistrySettings(max_nodes=3))
    listing = {f"nobody-{n}": [1, 1, "ab" * 8] for n in range(1_000)}
    lies = lying(replica(B, say(C)), b"l", orjson.dumps({"held": listing}))
    with pytest.raises(InvalidFrame, match="cannot be fetched"):
        exchange(node, lies)


def test_a_record_of_a_denied_node_is_never_asked_for() -> None:
    closed = replica(A, settings=RegistrySettings(deny=(B.peer,)))
    (other,) = strangers(1)
    open_ = replica(C, say(B, LLAMA), other)

    def answer(question: bytes) -> bytes:
        return sync.answer(open_, question, NOW, asker=A.peer)[0]

    pulls = []
    for _ in range(3):
        questions, effects = exchange(closed, answer)
        pulls += [question for question in questions if question.startswith(b"p")]
        assert not [e for e in effects if isinstance(e, RecordsKeptOut | RecordsRefused)]
    assert [orjson.loads(pull[1:])["nodes"] for pull in pulls] == [[other.record.node]]
    assert [*closed.catalog.held] == [other.record.node]


def test_a_record_of_a_denied_node_that_a_peer_pushes_is_kept_out_and_is_no_refusal_for_a_limit() -> (
    None
):
    closed = replica(A, settings=RegistrySettings(deny=(B.peer,)))
    _, effects = sync.answer(closed, b"P" + batch(say(B, LLAMA).frame), NOW, asker=C.peer)
    assert [e for e in effects if isinstance(e, RecordsKeptOut | RecordsRefused)] == [
        RecordsKeptOut((B.peer,))
    ]
    assert B.peer not in closed.catalog.held
