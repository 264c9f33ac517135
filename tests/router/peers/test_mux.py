"""Laws of many streams in one connection: bytes in order, none beyond the window, and violations cut off with a reason."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import ProtocolViolation
from router.peers.mux import (
    EXTRA_BYTES,
    FRAME_BYTES,
    MAX_STREAMS,
    MAX_WINDOW,
    QUICK_SECONDS,
    RESETS,
    WINDOW,
    Ended,
    Event,
    Flag,
    FrameType,
    GoneAway,
    Mux,
    Opened,
    Received,
    StreamCut,
)

SLOW = 10 * QUICK_SECONDS
ALL = 2**40


def frame(kind: int, flags: int, stream: int, number: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream, number) + payload


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(FrameType.DATA, flags, stream, len(payload), payload)


OPEN = frame(FrameType.WINDOW, Flag.SYN, 1)


@dataclass
class Pair:
    """Both sides of a connection, and the bytes that each stream delivered to either."""

    asking: Mux = field(default_factory=lambda: Mux(is_client=True))
    asked: Mux = field(default_factory=lambda: Mux(is_client=False))
    brought: dict[tuple[bool, int], bytearray] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    now: float = 0.0

    def carry(
        self, *, reads: Callable[[int], bool] = lambda stream: True, piece: int = ALL
    ) -> None:
        """Carry pending bytes both ways, in pieces, until none are left; streams that `reads` allows return credit."""
        while self.asking.wants_to_send or self.asked.wants_to_send:
            for source, sink in ((self.asking, self.asked), (self.asked, self.asking)):
                sent = source.data_to_send(ALL)
                for start in range(0, len(sent), max(1, min(piece, len(sent)))):
                    self.take(sink, sent[start : start + piece], reads)

    def take(self, sink: Mux, sent: bytes, reads: Callable[[int], bool]) -> None:
        for event in sink.receive(sent, self.now):
            self.events.append(event)
            if isinstance(event, Received):
                key = sink is self.asked, event.stream
                self.brought.setdefault(key, bytearray()).extend(event.data)
                if reads(event.stream):
                    sink.consumed(event.stream, len(event.data), self.now)


def answerer(*sent: bytes) -> Mux:
    """Return the asked side after it received these bytes."""
    mux = Mux(is_client=False)
    for piece in sent:
        mux.receive(piece, 0.0)
    return mux


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.binary(max_size=40)), max_size=30),
    st.integers(1, 50),
)
def test_every_stream_delivers_its_bytes_in_order_however_they_are_split(
    writes: list[tuple[int, bool, bytes]], piece: int
) -> None:
    pair = Pair()
    streams = [pair.asking.open() for _ in range(4)]
    pair.carry()
    meant: dict[tuple[bool, int], bytes] = {}
    for which, forth, written in writes:
        source = pair.asking if forth else pair.asked
        source.send(streams[which], written)
        key = forth, streams[which]
        meant[key] = meant.get(key, b"") + written
    for stream in streams:
        pair.asking.end(stream)
        pair.asked.end(stream)
    pair.carry(piece=piece)
    assert pair.brought == {key: written for key, written in meant.items() if written}
    assert sorted(e for e in pair.events if isinstance(e, Ended)) == sorted(
        Ended(stream) for stream in streams for _ in range(2)
    )
    assert len(pair.asking) == len(pair.asked) == 0


@given(st.lists(st.integers(1, 3 * WINDOW), min_size=1, max_size=5), st.integers(1_000, 70_000))
def test_more_bytes_than_a_window_arrive_if_they_are_read(sizes: list[int], piece: int) -> None:
    pair = Pair()
    stream = pair.asking.open()
    whole = b"".join(bytes([index % 251]) * size for index, size in enumerate(sizes))
    pair.asking.send(stream, whole)
    pair.carry(piece=piece)
    assert pair.brought[True, stream] == whole


def test_a_reader_that_stalls_holds_up_only_its_own_stream() -> None:
    pair = Pair()
    stalled, other = pair.asking.open(), pair.asking.open()
    pair.carry()
    pair.asked.send(stalled, b"s" * 5 * WINDOW)
    pair.asked.send(other, b"o" * 5 * WINDOW)
    pair.carry(reads=lambda stream: stream == other)
    assert len(pair.brought[False, stalled]) == WINDOW
    assert pair.asked.unsent(stalled) == 4 * WINDOW
    assert pair.brought[False, other] == b"o" * 5 * WINDOW


def test_streams_take_turns_frame_by_frame() -> None:
    mux = answerer(OPEN, frame(FrameType.WINDOW, Flag.SYN, 3))
    for stream in (1, 3):
        mux.send(stream, bytes(WINDOW))
    mux.send(3, b"last")
    sent = mux.data_to_send(2 * FRAME_BYTES)
    assert {struct.unpack_from("!I", sent, offset)[0] for offset in (4, 16 + FRAME_BYTES)} == {1, 3}
    assert len(sent) < 3 * FRAME_BYTES


def test_writes_of_one_turn_and_the_end_are_one_frame() -> None:
    mux = answerer(OPEN)
    for word in (b"to", b"ken", b"s"):
        mux.send(1, word)
    mux.end(1)
    assert mux.data_to_send(ALL) == data(1, b"tokens", Flag.ACK | Flag.FIN)


class TestWindows:
    def read(self, pair: Pair, stream: int, size: int, seconds: float) -> None:
        """Send and read `size` bytes, half a window per `seconds`."""
        for _ in range(size // (WINDOW // 2)):
            pair.asking.send(stream, bytes(WINDOW // 2))
            pair.now += seconds
            pair.carry()

    def ahead(self, pair: Pair, stream: int) -> int:
        """Return how many bytes the sender may be ahead."""
        before = len(pair.brought.get((True, stream), b""))
        pair.asking.send(stream, bytes(2 * MAX_WINDOW))
        pair.carry(reads=lambda stream: False)
        return len(pair.brought[True, stream]) - before

    def test_a_reader_that_keeps_up_gets_a_wider_window_up_to_the_maximum(self) -> None:
        pair = Pair()
        stream = pair.asking.open()
        self.read(pair, stream, 8 * MAX_WINDOW, 0.01)
        assert MAX_WINDOW // 2 < self.ahead(pair, stream) <= MAX_WINDOW

    def test_a_slow_reader_keeps_the_initial_window(self) -> None:
        pair = Pair()
        stream = pair.asking.open()
        self.read(pair, stream, 8 * MAX_WINDOW, SLOW)
        assert self.ahead(pair, stream) <= WINDOW

    def test_the_total_widening_is_bounded_and_ended_streams_return_their_share(self) -> None:
        pair = Pair()
        streams = [pair.asking.open() for _ in range(2 * EXTRA_BYTES // MAX_WINDOW)]
        for stream in streams:
            self.read(pair, stream, 8 * MAX_WINDOW, 0.0)
        bytes_ahead = sum(self.ahead(pair, stream) for stream in streams)
        assert bytes_ahead <= EXTRA_BYTES + len(streams) * WINDOW
        for stream in streams:
            pair.asked.reset(stream)
        pair.carry()
        late = pair.asking.open()
        self.read(pair, late, 8 * MAX_WINDOW, 0.0)
        assert self.ahead(pair, late) > MAX_WINDOW // 2


class TestEnds:
    def test_a_stream_that_is_cut_ends_on_both_sides(self) -> None:
        for asked_cuts in (True, False):
            pair = Pair()
            stream = pair.asking.open()
            pair.asking.send(stream, b"question")
            pair.carry()
            (pair.asked if asked_cuts else pair.asking).reset(stream)
            pair.carry()
            assert pair.events[-1] == StreamCut(stream, taken=True)
            assert len(pair.asking) == len(pair.asked) == 0

    @pytest.mark.parametrize("before", [b"", b"so much for "])
    def test_bytes_written_in_the_same_turn_arrive_before_the_cut(self, before) -> None:
        pair = Pair()
        number = pair.asking.open()
        pair.carry()
        pair.asked.send(number, before)
        pair.carry()
        for word in (b"the ", b"beginning"):
            pair.asked.send(number, word)
        pair.asked.reset(number)
        pair.carry()
        assert pair.brought[False, number] == before + b"the beginning"
        assert pair.events[-1] == StreamCut(number, taken=True)

    def test_a_stream_beyond_the_limit_is_refused_as_not_taken(self) -> None:
        pair = Pair()
        streams = [pair.asking.open() for _ in range(MAX_STREAMS + 1)]
        pair.asking.send(streams[-1], b"never read")
        pair.carry()
        assert [e for e in pair.events if isinstance(e, StreamCut)] == [
            StreamCut(streams[-1], taken=False)
        ]
        assert len(pair.asked) == MAX_STREAMS

    def test_going_away_refuses_new_streams_and_finishes_the_others(self) -> None:
        pair = Pair()
        old = pair.asking.open()
        pair.carry()
        pair.asked.go_away()
        late = pair.asking.open()
        pair.asked.send(old, b"answer")
        pair.asked.close(old)
        pair.carry()
        assert GoneAway() in pair.events
        assert StreamCut(late, taken=False) in pair.events
        assert pair.brought == {(False, old): b"answer"}

    def test_frames_for_a_closed_stream_are_ignored(self) -> None:
        mux = answerer(OPEN)
        mux.close(1)
        assert mux.data_to_send(ALL) == data(1, b"", Flag.ACK | Flag.FIN)
        assert mux.receive(data(1, b"late") + data(1, b"", Flag.FIN), 0.0) == []
        assert len(mux) == 0

    def test_a_closed_stream_still_sends_bytes_that_wait_for_credit(self) -> None:
        pair = Pair()
        stream = pair.asking.open()
        pair.carry()
        pair.asked.send(stream, bytes(3 * WINDOW))
        pair.asked.close(stream)
        pair.carry()
        assert len(pair.brought[False, stream]) == 3 * WINDOW
        assert pair.events[-1] == Ended(stream)
        assert len(pair.asked) == 0


HOSTILE = {
    "no version of ours": b"\1" + bytes(11),
    "no type": frame(4, 0, 1),
    "no flag": frame(FrameType.DATA, 16, 1),
    "a stream that was never opened": data(1, b"x"),
    "an even stream": frame(FrameType.WINDOW, Flag.SYN, 2),
    "a stream twice": OPEN + OPEN,
    "an older stream": frame(FrameType.WINDOW, Flag.SYN, 3) + OPEN,
    "more than the window": OPEN + data(1, bytes(WINDOW)) + data(1, b"x"),
    "a frame beyond it": OPEN + frame(FrameType.DATA, 0, 1, WINDOW + 1),
    "bytes after the end": OPEN + data(1, b"x", Flag.FIN) + data(1, b"y"),
    "credit without bound": OPEN + 2 * frame(FrameType.WINDOW, 0, 1, 2**31 - 1),
    "a frame without bound for what is over": OPEN
    + frame(FrameType.WINDOW, Flag.RST, 1)
    + frame(FrameType.DATA, 0, 1, 2**32 - 1),
    "pings whose answers nobody reads": frame(FrameType.PING, Flag.SYN, 0) * 6_000,
    "streams that are opened to be cut": b"".join(
        frame(FrameType.WINDOW, Flag.SYN, number) + frame(FrameType.WINDOW, Flag.RST, number)
        for number in range(1, 2 * int(RESETS) + 3, 2)
    ),
}


@pytest.mark.parametrize("kind", [FrameType.WINDOW, FrameType.DATA])
@pytest.mark.parametrize("together", [False, True])
def test_streams_that_end_before_a_byte_are_bounded_over_all_connections_of_a_node(
    kind: FrameType, together: bool
) -> None:
    muxes = [Mux(is_client=False) for _ in range(4)]
    opened: list[int] = []

    def flood() -> None:
        for number in range(1, 4 * int(RESETS), 2):
            for mux in muxes:
                sent = frame(kind, Flag.SYN | Flag.FIN, number)
                if not together:
                    sent = frame(kind, Flag.SYN, number) + frame(kind, Flag.FIN, number)
                opened.extend(e.stream for e in mux.receive(sent, 0.0) if isinstance(e, Opened))
                mux.close(number)
                mux.data_to_send(ALL)

    for mux in muxes:
        mux.wasted_streams = muxes[0].wasted_streams
    with pytest.raises(ProtocolViolation, match="in vain"):
        flood()
    assert len(opened) == RESETS


def test_streams_with_a_request_are_not_opened_in_vain() -> None:
    mux = answerer()
    for number in range(1, 4 * int(RESETS), 2):
        mux.receive(frame(FrameType.WINDOW, Flag.SYN, number) + data(number, b"x", Flag.FIN), 0.0)
        mux.close(number)
        mux.data_to_send(ALL)
    assert len(mux) == 0


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_protocol_violation_is_detected_with_a_reason(sent: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="it "):
        answerer(sent)


def test_the_asked_side_may_not_open_streams() -> None:
    with pytest.raises(ProtocolViolation):
        Mux(is_client=True).receive(frame(FrameType.WINDOW, Flag.SYN, 2), 0.0)


FRAMES = st.builds(
    frame,
    st.integers(0, 4),
    st.integers(0, 16),
    st.integers(0, 9),
    st.one_of(st.integers(0, 70), st.integers(0, 2**32 - 1)),
    st.binary(max_size=70),
)


@given(st.booleans(), st.lists(st.one_of(FRAMES, st.binary(max_size=30)), max_size=30))
def test_any_bytes_are_accepted_or_refused_within_the_limits(
    asking: bool, sent: list[bytes]
) -> None:
    mux = Mux(is_client=asking)
    if asking:
        mux.open()
    unread: dict[int, int] = {}
    try:
        for piece in sent:
            for event in mux.receive(piece, 0.0):
                if isinstance(event, Received):
                    unread[event.stream] = unread.get(event.stream, 0) + len(event.data)
                if isinstance(event, Opened):
                    mux.send(event.stream, b"answer")
    except ProtocolViolation:
        pass
    assert all(size <= WINDOW for size in unread.values())
    assert len(mux) <= MAX_STREAMS
    mux.data_to_send(ALL)


@given(st.lists(FRAMES, max_size=10), st.data())
def test_the_same_bytes_give_the_same_events_in_any_pieces(
    sent: list[bytes], draw: st.DataObject
) -> None:
    whole = OPEN + b"".join(sent)
    cut = draw.draw(st.integers(0, len(whole)))

    def told(*pieces: bytes) -> tuple[list[tuple[object, ...]], str]:
        mux, events, reason = Mux(is_client=False), [], ""
        bytes_of: dict[int, bytes] = {}
        try:
            for piece in pieces:
                for event in mux.receive(piece, 0.0):
                    if isinstance(event, Received):
                        bytes_of[event.stream] = bytes_of.get(event.stream, b"") + event.data
                    else:
                        events.append((type(event), *event))
        except ProtocolViolation as error:
            # Events of the same piece before the violation are not returned.
            return [], str(error)
        return [*events, *sorted(bytes_of.items())], reason

    assert told(whole) == told(whole[:cut], whole[cut:])
