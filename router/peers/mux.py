"""Multiplexer of a connection between two nodes: many streams in yamux frames, each with its credit. No I/O.

It is narrower than yamux's specification in two points: only the asking side opens streams, and the first window is `WINDOW`, so
that hundreds of unread streams hold little. Bytes go in, events come out; time is an argument.
"""

import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from registry.errors import ProtocolViolation
from registry.intake.rate import RateLimit

FRAME = struct.Struct("!BBHII")
"""Head of a frame: version, kind, flags, stream, number. As many bytes as the number says follow that of a `DATA` frame."""

VERSION = 0

PLAIN_DATA = struct.Struct("!4xII")
"""Header of a `DATA` frame without flags."""

BRIEF = struct.Struct("!III")
"""Header of a frame whose version, kind and flags are read as one number: 0 for `DATA` without flags."""


class FrameType(IntEnum):
    """Kind of a frame."""

    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntFlag):
    """Flags of a frame."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class Opened(NamedTuple):
    """The other side opened a stream."""

    stream: int


class Received(NamedTuple):
    """Bytes of a stream came; call `Mux.consumed` when its reader has taken them."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The other side sends nothing more on a stream."""

    stream: int


class StreamCut(NamedTuple):
    """The other side reset a stream; `taken` says whether it had accepted the stream at all."""

    stream: int
    taken: bool


class GoneAway(NamedTuple):
    """The other side takes no new streams; those that it has accepted go on."""


class Answered(NamedTuple):
    """The other side answered a ping: it is alive."""


Event = Opened | Received | Ended | StreamCut | GoneAway | Answered


WINDOW = 64 * 1024
"""Bytes by which a new stream's sender may be ahead of its reader."""

MAX_WINDOW = 1024 * 1024
"""Bytes by which it may be ahead of a reader that keeps up, as a distant node must be to use its line."""

EXTRA_BYTES = 4 * 1024 * 1024
"""Total bytes by which all windows of one connection together may exceed `WINDOW`."""

QUICK_SECONDS = 0.25
"""A reader that reads half a window within these seconds gets a window of twice the size."""

MAX_STREAMS = 256
"""Maximum number of streams of one connection; further ones are refused, unread."""

FRAME_BYTES = 16 * 1024
"""Maximum size of one `DATA` frame, after which other streams have their turn."""

MAX_UNSENT_REPLIES = 64 * 1024
"""Bytes of unsent frames beyond which another reply is a violation: the other side does not read what it requests."""

RESETS, RESETS_PER_SECOND = 2048.0, 512.0
"""Token bucket of streams that the asking side may open in vain: each has cost a connection of the HTTP server."""

_MOST_CREDIT = 2**31
_LAST_STREAM = 2**32 - 1


_DATA, _WINDOW, _PING, _GO_AWAY = map(int, FrameType)
_SYN, _ACK, _FIN, _RST = map(int, Flag)
_BRIEF_BYTES, _brief = BRIEF.size, BRIEF.unpack_from
_tuple = tuple.__new__  # a named tuple's own runs in Python


@dataclass(slots=True)
class _Stream:
    """One stream, as one side sees it."""

    flags: int = 0
    """Flags of its next frame: `ACK` if this side has accepted it."""
    taken: bool = False
    """Whether the other side has accepted it."""
    credit: int = WINDOW
    """Bytes that may still be sent."""
    pending: bytearray = field(default_factory=bytearray)
    """Bytes that wait to be sent."""
    ends: bool = False
    """Whether nothing more follows them."""
    queued: bool = False
    """Whether it waits for its turn to send."""
    turn: int = -1
    """When it last sent something without waiting, counted in calls of `data_to_send`."""
    sent_end: bool = False
    got_end: bool = False
    reader_gone: bool = False
    """Whether its reader is gone."""
    open: bool = True
    """Whether there is a reader, and more may come: neither `got_end` nor `reader_gone`."""
    window: int = WINDOW
    room: int = WINDOW
    """Bytes that the other side may still send."""
    read: int = 0
    """Bytes that the reader has taken and that were not yet given back as room."""
    since: float = 0.0
    """When room was last given back."""


class Mux:
    """One side of a connection."""

    def __init__(self, *, is_client: bool) -> None:
        self.is_leaving = False
        """Whether this side takes no new streams."""
        self._is_client = is_client
        self._streams: dict[int, _Stream] = {}
        self._newest = -1 if is_client else 0
        self._turns: deque[int] = deque()
        self._control = bytearray()
        self._ready = bytearray()
        """`DATA` frames that were made at once in `send`: at most one of each stream for a call of `data_to_send`."""
        self._turn = 0
        self._partial = b""
        self._receiving = 0
        """The stream whose `DATA` frame is being received; `_bytes_left` is how many of its bytes are still to come."""
        self._bytes_left = 0
        self._fin = False
        self._extra = EXTRA_BYTES
        self.wasted_streams = RateLimit(rate=RESETS_PER_SECOND, burst=RESETS)
        """Limit of streams that end before a byte or by a reset; the connections of one node share it."""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_exhausted(self) -> bool:
        """Whether no number is left for another stream."""
        return self._newest >= _LAST_STREAM

    @property
    def wants_to_send(self) -> bool:
        """Whether something could be sent now."""
        return bool(self._control or self._ready or self._turns)

    # Actions of this side.

    def open(self) -> int:
        """Open a stream and return its number."""
        self._newest += 2
        self._streams[self._newest] = _Stream()
        self._queue_frame(_WINDOW, _SYN, self._newest)
        return self._newest

    def send(self, number: int, data: bytes | bytearray | memoryview) -> int:
        """Send bytes on a stream as soon as there is credit; return how many of its bytes wait to be sent."""
        stream = self._streams.get(number)
        if stream is None or stream.ends:
            return 0
        size, ready, turn = len(data), self._ready, self._turn
        first = stream.turn != turn and not (stream.pending or stream.flags)
        if first and size <= stream.credit and size + len(ready) <= FRAME_BYTES:
            # The common case: few bytes, and no others of their stream in this turn.
            stream.turn = turn
            stream.credit -= size
            ready += PLAIN_DATA.pack(number, size)
            ready += data
            return 0
        stream.pending += data
        self._wait_for_turn(number, stream)
        return len(stream.pending)

    def unsent(self, number: int) -> int:
        """Return how many bytes of a stream wait to be sent."""
        stream = self._streams.get(number)
        return len(stream.pending) if stream is not None else 0

    def end(self, number: int) -> None:
        """Half-close a stream: send nothing more once what waits is sent."""
        stream = self._streams.get(number)
        if stream is not None and not stream.ends:
            stream.ends = True
            self._wait_for_turn(number, stream)

    def close(self, number: int) -> None:
        """End a stream and read no more of it; it is over when what waits is sent."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.reader_gone, stream.open = True, False
        if stream.sent_end:
            self._forget(number)
        self.end(number)

    def reset(self, number: int) -> None:
        """Reset a stream at once. What was written before and has credit is still sent, as over a socket."""
        stream = self._streams.get(number)
        if stream is not None:
            self._control += self._ready
            self._ready.clear()
            if stream.pending and stream.credit:
                self._write_frame(self._control, number, stream)
            self._queue_frame(_WINDOW, _RST | stream.flags, number)
            self._forget(number)

    def consumed(self, number: int, count: int, now: float) -> bool:
        """Note that a stream's reader has taken bytes; give them back as room if that is worth a frame, and return whether."""
        stream = self._streams.get(number)
        if stream is None or stream.got_end:
            return False
        stream.read += count
        if stream.read < stream.window // 2:
            return False
        granted, stream.read = stream.read, 0
        wider = 2 * stream.window <= MAX_WINDOW and stream.window <= self._extra
        if wider and now - stream.since < QUICK_SECONDS:
            self._extra -= stream.window
            granted += stream.window
            stream.window *= 2
        stream.since = now
        stream.room += granted
        self._queue_frame(_WINDOW, stream.flags, number, granted)
        stream.flags = 0
        return True

    def ping(self) -> None:
        """Ask the other side to show that it is alive."""
        self._queue_frame(_PING, _SYN, 0)

    def go_away(self) -> None:
        """Take no new streams from now on, and tell the other side."""
        self.is_leaving = True
        self._queue_frame(_GO_AWAY, 0, 0)

    def data_to_send(self, at_most: int) -> bytes:
        """Return the frames that can be sent now: control frames, then bytes of each stream in turn, up to about `at_most`."""
        self._turn += 1
        out = self._control + self._ready
        self._control.clear()
        self._ready.clear()
        turns = self._turns
        while turns and len(out) < at_most:
            number = turns.popleft()
            if (stream := self._streams.get(number)) is not None:
                self._write_frame(out, number, stream)
        return bytes(out)

    def _write_frame(self, out: bytearray, number: int, stream: _Stream) -> None:
        stream.queued = False
        pending = stream.pending
        size = min(len(pending), stream.credit, FRAME_BYTES)
        complete = size == len(pending)
        flags = stream.flags | (_FIN if complete and stream.ends else 0)
        out += FRAME.pack(VERSION, _DATA, flags, number, size)
        stream.flags = 0
        stream.credit -= size
        if complete:
            out += pending
            stream.pending = bytearray()
        else:
            out += pending[:size]
            del pending[:size]
        if flags & _FIN:
            stream.sent_end = True
            if stream.got_end or stream.reader_gone:
                self._forget(number)
        elif not complete:
            self._wait_for_turn(number, stream)

    # Input from the other side.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take in bytes and return their events; raise `ProtocolViolation`, with a reason, if they break the rules."""
        if self._partial:
            data, self._partial = self._partial + data, b""
        events: list[Event] = []
        streams, size = self._streams, len(data)
        offset = self._receive_data(data, 0, now, events) if self._bytes_left else 0
        while offset < size:
            begins, offset = offset, offset + _BRIEF_BYTES
            if offset > size:
                self._partial = data[begins:]
                break
            marked, number, value = _brief(data, begins)
            stream = None if marked else streams.get(number)
            end = offset + value
            if stream is not None and stream.open and 0 < value <= stream.room and end <= size:
                # The common case: bytes of a stream, in a frame that has come whole.
                stream.room -= value
                events.append(_tuple(Received, (number, data[offset:end])))
                offset = end
                continue
            self._frame(FRAME.unpack_from(data, begins), now, events)
            if self._bytes_left:
                offset = self._receive_data(data, offset, now, events)
        return events

    def _frame(
        self, frame: tuple[int, int, int, int, int], now: float, events: list[Event]
    ) -> None:
        version, kind, flags, number, value = frame
        if version != VERSION or kind > _GO_AWAY or flags > _SYN | _ACK | _FIN | _RST:
            raise ProtocolViolation("it sent an invalid frame")
        if kind == _PING:
            if flags & _SYN:
                self._queue_reply(_PING, _ACK, 0, value)
            else:
                events.append(Answered())
            return
        if kind == _GO_AWAY:
            events.append(GoneAway())
            return
        stream = self._find_stream(number, flags, events)
        if stream is not None and flags & _ACK:
            stream.taken = True
        if kind == _DATA:
            self._begin_data(number, stream, value, ends=bool(flags & _FIN))
        elif stream is not None and value:
            self._add_credit(number, stream, value)
        if flags & _RST:
            self._receive_reset(number, stream, now, events)
        elif flags & _FIN and not self._bytes_left:
            self._receive_end(number, now, events)

    def _find_stream(self, number: int, flags: int, events: list[Event]) -> _Stream | None:
        """Return the stream that a frame is about, `None` for one that is over."""
        if flags & _SYN:
            if self._is_client or number <= self._newest or not number % 2:
                raise ProtocolViolation("it opened a stream that it may not open")
            self._newest = number
            if self.is_leaving or len(self._streams) >= MAX_STREAMS:
                self._queue_reply(_WINDOW, _RST, number)
                return None
            self._streams[number] = _Stream(flags=_ACK, taken=True)
            events.append(Opened(number))
        elif number > self._newest or not number % 2:
            raise ProtocolViolation("it referred to a stream that was never opened")
        return self._streams.get(number)

    def _begin_data(self, number: int, stream: _Stream | None, size: int, *, ends: bool) -> None:
        """Begin a `DATA` frame; raise `ProtocolViolation`. Bytes for a stream that is over are skipped."""
        self._receiving, self._bytes_left, self._fin = number, size, ends
        if stream is None:
            if size > MAX_WINDOW:
                raise ProtocolViolation("it sent more than its window allows")
        elif size > stream.room:
            raise ProtocolViolation("it sent more than its window allows")
        elif stream.got_end:
            raise ProtocolViolation("it sent data after the end of a stream")
        else:
            stream.room -= size

    def _receive_data(self, data: bytes, offset: int, now: float, events: list[Event]) -> int:
        """Take in what has come of a `DATA` frame's bytes, and return where that ends."""
        piece = data[offset : offset + self._bytes_left]
        self._bytes_left -= len(piece)
        stream = self._streams.get(self._receiving)
        if piece and stream is not None and not stream.reader_gone:
            events.append(Received(self._receiving, piece))
        if self._fin and not self._bytes_left:
            self._receive_end(self._receiving, now, events)
        return offset + len(piece)

    def _add_credit(self, number: int, stream: _Stream, more: int) -> None:
        stream.credit += more
        if stream.credit > _MOST_CREDIT:
            raise ProtocolViolation("it granted too large a window")
        self._wait_for_turn(number, stream)

    def _receive_end(self, number: int, now: float, events: list[Event]) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.room == stream.window and not stream.since:
            self._count_wasted(now)
        stream.got_end, stream.open = True, False
        if not stream.reader_gone:
            events.append(Ended(number))
        if stream.sent_end:
            self._forget(number)

    def _receive_reset(
        self, number: int, stream: _Stream | None, now: float, events: list[Event]
    ) -> None:
        if stream is None:
            return
        self._count_wasted(now)
        if not stream.reader_gone:
            events.append(StreamCut(number, stream.taken))
        self._forget(number)

    def _count_wasted(self, now: float) -> None:
        if not self._is_client and not self.wasted_streams.allows("", now):
            raise ProtocolViolation("it opened streams in vain too often")

    # Internals.

    def _wait_for_turn(self, number: int, stream: _Stream) -> None:
        """Queue a stream if it can send something: bytes, or its end alone."""
        ready = bool(stream.credit) if stream.pending else stream.ends and not stream.sent_end
        if ready and not stream.queued:
            stream.queued = True
            self._turns.append(number)

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number)
        self._extra += stream.window - WINDOW

    def _queue_frame(self, kind: int, flags: int, number: int, value: int = 0) -> None:
        self._control += FRAME.pack(VERSION, kind, flags, number, value)

    def _queue_reply(self, kind: int, flags: int, number: int, value: int = 0) -> None:
        if len(self._control) >= MAX_UNSENT_REPLIES:
            raise ProtocolViolation("it does not read the answers that it requests")
        self._queue_frame(kind, flags, number, value)
