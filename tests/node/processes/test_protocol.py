"""Messages between the processes of one node: whole frames of known shapes; anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.settings import NodeSettings, Settings
from node.observe.counters import Counts, HistogramCounts, LabelledCount
from node.observe.measurements import HistogramValue
from node.observe.recent import NoRoomCount
from node.observe.request_sums import Histogram
from node.processes import protocol
from node.processes.protocol import (
    MAX_FRAME_BYTES,
    EvidenceShown,
    Frames,
    Hello,
    Leave,
    LoadHeard,
    LoadReport,
    NodeSeen,
    RequestsObserved,
    SlotAsked,
    SlotGranted,
    SlotRefused,
    StateAsked,
    Unreadable,
    WorkersHeld,
    encode_frame,
    read_by_first,
    read_by_helper,
)
from registry.members.liveness import Evidence, Presence
from registry.records import Load, ModelType, PeerId, Service
from router.workers import Worker

SERVICE = Service("p", "m", "1", ModelType.IMAGE)
LOADS = ((SERVICE, Load(1, 2, slots=3, rate=4.5, first=0.1)),)
HISTOGRAM = Histogram()
COUNTS = Counts(
    requests=(LabelledCount("chat", "200", 3),),
    seconds=(HistogramCounts("chat", tuple(HISTOGRAM.counts), 1.5),),
    in_flight=2,
)
TOLD = (
    Hello(bytes(range(32)), Settings(), "127.0.0.1:1", "127.0.0.1:2"),
    WorkersHeld((Worker(SERVICE, "http://127.0.0.1:1", capacity=4),)),
    WorkersHeld(
        (Worker(SERVICE, "http://w", load='{"n":1}', headers=(("a", "b"),), template="plain"),)
    ),
    NodeSeen(PeerId("a"), Presence.SUSPECT, b"\xff\0frame"),
    LoadHeard(PeerId("a"), LOADS),
    StateAsked(7),
    SlotGranted(1, SERVICE),
    SlotGranted(1, None),
    SlotRefused(1, "full", 2.5),
    Leave(),
    Leave(ends=False),
)
SAID = (
    SlotAsked(3, (SERVICE,), waiting=True, model="m"),
    EvidenceShown(PeerId("a"), Evidence.FAILED),
    LoadReport(1, 2, LOADS, COUNTS, 0.1, 0.05),
    RequestsObserved((NoRoomCount("m", PeerId("a"), 3),)),
    RequestsObserved((), (HistogramValue("name", (("a", "b"),), (0, 1), 1.5),)),
)


@pytest.mark.parametrize("word", TOLD, ids=lambda word: type(word).__name__)
def test_a_message_of_the_first_process_is_read_as_it_was_sent(word) -> None:
    assert [read_by_helper(frame) for frame in Frames().split(encode_frame(word))] == [word]


@pytest.mark.parametrize("word", SAID, ids=lambda word: type(word).__name__)
def test_a_message_of_a_helper_is_read_as_it_was_sent(word) -> None:
    assert [read_by_first(frame) for frame in Frames().split(encode_frame(word))] == [word]


def test_a_path_in_the_settings_need_not_be_utf8() -> None:
    settings = Settings(node=NodeSettings(data_dir="/tmp/d\udcff"))
    hello = Hello(bytes(32), settings, "127.0.0.1:1", "127.0.0.1:2")
    assert [read_by_helper(frame) for frame in Frames().split(encode_frame(hello))] == [hello]


@given(st.lists(st.integers(1, 9)), st.integers(1, 50))
def test_frames_are_whole_however_the_bytes_are_cut(numbers: list[int], size: int) -> None:
    sent = b"".join(encode_frame(StateAsked(number)) for number in numbers)
    frames = Frames()
    found = [
        f
        for offset in range(0, len(sent), size)
        for f in frames.split(sent[offset : offset + size])
    ]
    assert [read_by_helper(frame) for frame in found] == [StateAsked(number) for number in numbers]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"Ask", b"Ask {}", b"Ask []", b'Fire {"number":1}', b"\xff", b"Ready {}"],
)  # fmt: skip
def test_a_body_that_is_no_message_of_the_first_process_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        read_by_helper(body)


def test_a_frame_that_is_too_long_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(Unreadable):
        Frames().split((MAX_FRAME_BYTES + 1).to_bytes(4) + b"{")
    with pytest.raises(Unreadable):
        encode_frame(NodeSeen(PeerId("a"), Presence.ALIVE, bytes(MAX_FRAME_BYTES)))


def test_a_key_is_never_shown() -> None:
    assert "seed" not in repr(TOLD[0])
    assert protocol.Hello.__name__ in repr(TOLD[0])
