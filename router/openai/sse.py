"""Incremental splitter of event streams, which keeps every byte.

Follows the WHATWG specification of server-sent events, section 9.2.6, for line ends, comments and `data` lines. Used
only where events must be examined; otherwise streams pass through as bytes.
"""

import re

from registry.values import value_class
from router.openai.event_texts import contains

# A line end is CRLF, LF or CR; the groups are atomic so that one CRLF is never taken for two.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"
# The first eight bytes of a `data` line's value, fewer if the line is shorter.
_SAID = re.compile(rb"(?:\A|[\r\n])data: ?+([^\r\n]{8}|[^\r\n]+(?=[\r\n]))")
_ENOUGH = 16  # bytes of a line that suffice for that pattern
_DONE = b"[DONE]"
# Its blank line may not end with the first half of a CRLF.
_DONE_EVENT = re.compile(rb"[\r\n]data: ?\[DONE\](?:\r\n\r\n|\n\n|\r\r)")
_JSON_END = b"}\n\n"
_BEFORE_DONE, _AFTER_DONE = (
    len(b"\ndata: "),
    len(b"[DONE]\r\n\r\n"),
)  # the most that the pattern matches

_LONGEST_HELD = 1024 * 1024  # an event up to this size is held until it is whole
_LONGEST_TAIL = 4

SILENT_BYTES = 256 * 1024
"""Bytes of a stream that may come before its first data: comments, while a prompt is read."""


class EventTooLarge(ValueError):
    """An event did not end within the limit."""


@value_class
class Event:
    """One event: the bytes as they came, its blank line included, and the value of its `data` lines.

    `data` is empty for comments and for events without data; several `data` lines are joined with a line feed.
    """

    raw: bytes
    data: bytes


class FirstDataDetector:
    """Detector of a stream's first data, in chunks of any size; comments and blank lines are none."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take in the next bytes; return the first eight bytes of data, fewer if its line is shorter, or nothing yet."""
        searched = self._line + chunk
        if (match := _SAID.search(searched)) is not None:
            return match[1]
        begins = max(searched.rfind(b"\n"), searched.rfind(b"\r")) + 1
        self._line = searched[begins : begins + _ENOUGH]
        return b""


EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
"""The ends of events; the second also covers CRLF."""


def has_line(events: bytes, data: bytes) -> bool:
    """Return whether the data of some line begins with `data`. A pattern anchored at each line costs fifty times as much."""
    usual, short = b"\ndata: " + data, b"\ndata:" + data
    return (
        contains(events, usual)
        or contains(events, short)
        or events.startswith((usual[1:], short[1:]))
        or (contains(events, b"\r") and has_line(events.replace(b"\r", b"\n"), data))
    )


class DoneDetector:
    """Detector of the event `[DONE]`, with which OpenAI's streams are over, in chunks of any size."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b"\n"

    def feed(self, chunk: bytes) -> bool:
        """Take in the next bytes; return whether the event ends in them. It does not where JSON follows: the stream goes on."""
        if chunk.endswith(_JSON_END):
            self._tail = b"\n"
            return False
        searched = self._tail + chunk
        self._tail = searched[1 - _BEFORE_DONE - _AFTER_DONE :]
        at = searched.rfind(_DONE)
        # Searching more than the place where it may be takes some 40 instructions for each byte.
        return (
            at >= 0
            and _DONE_EVENT.search(searched, max(0, at - _BEFORE_DONE), at + _AFTER_DONE)
            is not None
        )


_NOTHING = bytearray()  # shared by all that hold nothing; only a buffer with bytes is ever changed


class WholeEvents:
    """Buffer that holds back the beginning of an event until it is whole: the node's error event cannot follow half an event."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = _NOTHING
        """The beginning of an event that is not whole yet."""

    @property
    def rest(self) -> bytes:
        """The bytes that are held back."""
        return bytes(self.held)

    def feed(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return those that are ready to be sent, possibly none."""
        if not self.held and chunk.endswith(EVENT_ENDS):
            return chunk
        end = _last_end(chunk)
        if end == 0 and self.held:
            # The held bytes contain no end of an event, but may end with the beginning of one.
            tail = bytes(self.held[-_LONGEST_TAIL:])
            end = max(0, _last_end(tail + chunk[:_LONGEST_TAIL]) - len(tail))
        if end == 0 and len(self.held) + len(chunk) < _LONGEST_HELD:
            # The buffer grows in place: joining anew for every chunk would copy an event of small chunks again and again.
            if self.held:
                self.held += chunk
            else:
                self.held = bytearray(chunk)
            return b""
        cut = end or len(chunk)
        ready = b"".join((self.held, memoryview(chunk)[:cut]))
        # A new buffer, since one that was once long keeps its memory.
        self.held = bytearray(chunk[cut:]) if cut < len(chunk) else _NOTHING
        return ready


def _last_end(chunk: bytes) -> int:
    """Return where the last event ends that ends in a chunk, 0 if none does."""
    end = 0
    for mark in EVENT_ENDS:
        # Behind the last end of one form, few bytes are left to be searched for another.
        index = chunk.rfind(mark, max(0, end - len(mark)))
        end = max(end, index + len(mark)) if index >= 0 else end
    return end


class Splitter:
    """Splitter of a stream into events, in chunks of any size."""

    def __init__(self, *, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        # One buffer that grows: joining anew for every chunk would copy an event of small chunks again and again.
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """Take in the next bytes and return the events that they complete; raise `EventTooLarge`."""
        held: bytes | bytearray = chunk
        if self._buffer:
            self._buffer += chunk
            held = self._buffer
        events: list[Event] = []
        start, seen, plain = 0, self._scanned, b"\r" not in held
        while (end := _event_end(held, seen, plain=plain)) > 0:
            raw = bytes(held[start:end])
            self._check(raw)
            events.append(Event(raw, data_of(raw)))
            start = seen = end
        if held is self._buffer:
            del self._buffer[:start]
        else:
            self._buffer += held[start:]
        self._check(self._buffer)
        # The longest end of an event has four bytes, so three of them may already be here.
        self._scanned = max(0, len(self._buffer) - 3)
        return events

    @property
    def held(self) -> bytes:
        """The beginning of an event whose end has not arrived."""
        return bytes(self._buffer)

    def finish(self) -> list[Event]:
        """Return what is left when the stream ends, as one event, even without its blank line."""
        held, self._buffer, self._scanned = bytes(self._buffer), bytearray(), 0
        return [Event(held, data_of(held))] if held else []

    def _check(self, raw: bytes | bytearray) -> None:
        if len(raw) > self._limit:
            raise EventTooLarge(f"an event of the stream is longer than {self._limit:,} bytes")


def _event_end(held: bytes | bytearray, start: int, *, plain: bool) -> int:
    """Return where the event ends, searching from `start` on, or -1 if its end has not arrived; `plain` means without any CR."""
    if plain:
        index = held.find(b"\n\n", start)
        return index + 2 if index >= 0 else -1
    end = _EVENT_END.search(held, start)
    # A final CR may be the first half of a CRLF, which only the next byte tells.
    if end is None or (end.end() == len(held) and held.endswith(b"\r")):
        return -1
    return end.end()


def data_of(raw: bytes) -> bytes:
    """Return the value of the `data` lines of one event."""
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n"):
        only = raw[6:-2]
        # Nearly all events are one line.
        if not (contains(only, b"\n") or contains(only, b"\r")):
            return only
    if not contains(raw, b"data"):
        return b""
    lines = _LINE_END.split(raw.removeprefix(_MARK))
    return b"\n".join(
        line[5:].removeprefix(b" ") if line.startswith(b"data:") else b""
        for line in lines
        if line.startswith(b"data:") or line == b"data"
    )


def with_data(event: Event, data: bytes) -> bytes:
    """Return an event's bytes with other data, all other lines and line ends unchanged."""
    if event.data in event.raw:
        head, _, tail = event.raw.rpartition(event.data)
        return head + data + tail
    # Data over several lines becomes one line, in front of the event's other lines.
    lines = [line for line in event.raw.splitlines(keepends=True) if not line.startswith(b"data")]
    return b"data: " + data.replace(b"\n", b" ") + b"\n" + b"".join(lines)
