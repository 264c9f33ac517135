"""Load reports: what changed, now and then what holds, nothing of an idle node; others hear it, and none can forge it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import wire
from registry.members.load import INTERVAL, REPEAT, Reporter, loads_by_service
from registry.mesh.memory import MemoryNet
from registry.records import Load, LoadNote, PeerId, Record, Service, Version
from registry.wire import MAX_LOADS
from tests.registry.test_service import LLAMA, QWEN, A, B, C, node, until


def busy(in_flight: int, queued: int = 0) -> Load:
    return Load(in_flight, queued, slots=8, rate=40.0, first=0.25)


def reported(service: Service, in_flight: int) -> Reporter:
    """Return a reporter that has reported this at time 0."""
    reporter = Reporter()
    assert reporter.rows_to_report({service: busy(in_flight)}, 0.0)
    return reporter


def test_an_idle_node_never_reports_anything() -> None:
    reporter = Reporter()
    assert not any(reporter.rows_to_report({}, now * 100.0) for now in range(100))


def test_the_first_request_is_reported_at_once() -> None:
    assert Reporter().rows_to_report({LLAMA: busy(1)}, 0.0) == {LLAMA: busy(1)}


def test_a_few_more_requests_among_many_are_not_worth_a_note() -> None:
    reporter = reported(LLAMA, 20)
    assert reporter.rows_to_report({LLAMA: busy(24)}, INTERVAL) == {}
    assert reporter.rows_to_report({LLAMA: busy(25)}, INTERVAL) == {LLAMA: busy(25)}


@pytest.mark.parametrize("after", [busy(4, 1), busy(0, 1)])
def test_a_queue_that_begins_or_a_number_that_reaches_zero_is_worth_a_note(after: Load) -> None:
    assert reported(LLAMA, 4).rows_to_report({LLAMA: after}, INTERVAL)


def test_the_end_of_all_load_is_reported_once_with_what_is_still_known() -> None:
    reporter = reported(LLAMA, 4)
    loads = reporter.rows_to_report({}, INTERVAL)
    assert loads == {LLAMA: Load(in_flight=0, queued=0, slots=8, rate=0.0, first=0.25)}
    assert not any(reporter.rows_to_report({}, now * 10.0) for now in range(1, 50))


def test_unchanged_load_is_repeated_rarely() -> None:
    reporter = reported(LLAMA, 4)
    assert reporter.rows_to_report({LLAMA: busy(4)}, REPEAT - 0.1) == {}
    assert reporter.rows_to_report({LLAMA: busy(4)}, REPEAT) == {LLAMA: busy(4)}


def test_changes_wait_for_the_interval_and_the_newest_is_reported() -> None:
    reporter = reported(LLAMA, 1)
    assert reporter.rows_to_report({LLAMA: busy(5)}, 0.4) == {}
    assert reporter.rows_to_report({LLAMA: busy(9)}, 0.8) == {}
    assert reporter.rows_to_report({LLAMA: busy(9)}, INTERVAL) == {LLAMA: busy(9)}


def test_a_change_of_one_service_brings_the_load_of_the_others_along() -> None:
    reporter = reported(LLAMA, 4)
    both = {LLAMA: busy(4), QWEN: busy(1)}
    assert reporter.rows_to_report(both, INTERVAL) == both


def test_in_a_large_mesh_each_node_reports_less_often() -> None:
    reporter = reported(LLAMA, 1)
    assert reporter.rows_to_report({LLAMA: busy(9)}, 19.0, rarity=20.0) == {}
    assert reporter.rows_to_report({LLAMA: busy(9)}, 20.0, rarity=20.0)


def test_of_too_many_services_those_that_changed_most_are_reported_and_the_others_next() -> None:
    reporter = Reporter()
    many = {Service("p", f"m{n}"): busy(n + 1) for n in range(MAX_LOADS + 10)}
    first = reporter.rows_to_report(many, 0.0)
    assert len(first) == MAX_LOADS
    assert set(first.values()) == {busy(n + 1) for n in range(10, MAX_LOADS + 10)}
    second = reporter.rows_to_report(many, INTERVAL)
    assert len(second) == MAX_LOADS
    assert first.keys() | second.keys() == many.keys()


loads = st.dictionaries(st.sampled_from([LLAMA, QWEN]), st.integers(1, 40).map(busy))


@given(st.lists(st.tuples(st.floats(0.01, 3.0), loads), max_size=40), st.floats(1.0, 60.0))
def test_whatever_happens_notes_are_rare_and_an_end_is_never_forgotten(
    steps: list[tuple[float, dict[Service, Load]]], rarity: float
) -> None:
    reporter, now, spoke = Reporter(), 0.0, float("-inf")
    believed: dict[Service, int] = {}
    for step, measured in steps:
        now += step
        if reported := reporter.rows_to_report(measured, now, rarity=rarity):
            assert now - spoke >= INTERVAL * rarity * 0.999
            spoke = now
            believed |= {service: load.in_flight for service, load in reported.items()}
    for _ in range(2):
        now += INTERVAL * rarity * 1.001
        reported = reporter.rows_to_report({}, now, rarity=rarity)
        believed |= {service: load.in_flight for service, load in reported.items()}
    assert not any(believed.values())


def test_rows_are_read_by_their_place_in_the_record_as_it_was_signed() -> None:
    record = Record(PeerId("n"), Version(1, 1), services=(LLAMA, QWEN), skipped=(0, 2))
    rows = tuple((index, busy(index + 1)) for index in range(6))
    note = LoadNote(record.node, record.version, 1, rows)
    assert loads_by_service(note, record) == {LLAMA: busy(2), QWEN: busy(4)}


def test_a_record_that_skips_nothing_names_its_services_in_order() -> None:
    record = Record(PeerId("n"), Version(1, 1), services=(LLAMA, QWEN))
    assert [record.service_at(index) for index in range(3)] == [LLAMA, QWEN, None]
    assert replace(record, skipped=(0,)) == record


BUSY = {LLAMA: Load(3, 1, 8, 40.0, 0.25)}


class Heard(dict[PeerId, dict[Service, Load]]):
    """The load that was reported last of each replica."""

    def take(self, node: PeerId, loads: dict[Service, Load]) -> None:
        self.setdefault(node, {}).update(loads)


async def test_the_others_hear_the_load_that_a_node_measures_and_its_end() -> None:
    net, heard = MemoryNet(), Heard()
    async with (
        node(net, A, LLAMA, QWEN) as a,
        node(net, B, bootstrap=(A,)) as b,
        node(net, C, bootstrap=(A,)) as c,
    ):
        c.load_exchange.on_load(heard.take)
        await until(lambda: c.catalog.digest == a.catalog.digest and len(b.catalog.held) == 3)
        digest = c.catalog.digest
        busy = dict(BUSY)
        a.load_exchange.set_source(lambda: busy)
        await until(lambda: heard.get(A.peer) == BUSY)
        busy.clear()
        await until(lambda: heard[A.peer][LLAMA].in_flight == 0)
        assert heard == {A.peer: {LLAMA: Load(0, 0, 8, 0.0, 0.25)}}
        assert a.counters["loads_out"] == c.counters["loads_in"] == 2
        assert c.counters["loads_dropped"] == 0
        assert c.catalog.digest == digest


async def test_a_strangers_load_a_forged_one_and_a_repeated_one_are_not_handed_on() -> None:
    net, heard = MemoryNet(), Heard()
    async with node(net, A, LLAMA) as a, node(net, B, bootstrap=(A,)) as b:
        b.load_exchange.on_load(heard.take)
        await until(
            lambda: a.own_record.node in b.catalog.held and b.own_record.node in a.catalog.held
        )
        a.load_exchange.set_source(lambda: BUSY)
        await until(lambda: heard)
        heard.clear()
        note = LoadNote(A.peer, a.own_record.version, 10**6, ((0, Load(9)),))
        forged = bytearray(wire.encode_load(note, C))
        forged[2:34] = A.public
        strange = wire.encode_load(LoadNote(C.peer, a.own_record.version, 1, ((0, Load(9)),)), C)
        repeated = wire.encode_load(LoadNote(A.peer, a.own_record.version, 1, ((0, Load(9)),)), A)
        for frame in (bytes(forged), strange, repeated):
            await a.mesh.publish(frame)
        await until(lambda: b.counters["loads_dropped"] == 2 and b.counters["frames_bad"] == 1)
        assert not heard
