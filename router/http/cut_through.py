"""Cut-through of a stream: whole events that nobody looks into go from the worker's connection straight to the caller's.

Nearly all that streams are made of is such: one chunk of HTTP/1.1 that holds whole events. Anything else, any doubt, takes the
ordinary path, untouched.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.openai.sse import WholeEvents

SHOWN_TOGETHER = 8
"""Chunks that those who record see in one piece, at most."""

# Nothing before the digits, and no extensions after them (RFC 9112 7.1): as servers write it. 16 to 4,095 bytes.
_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{1,2})\r\n")
_END = b"\n\n\r\n"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What parts of the ordinary path want of a stream.

    Events with one of the `signs` are theirs to read. `each` is called with every other chunk, and `seen` with a few together.
    `held` keep the beginnings of events.
    """

    signs: tuple[bytes, ...] = ()
    each: tuple[Callable[[bytes], object], ...] = ()
    seen: tuple[Callable[[bytes], object], ...] = ()
    held: tuple[WholeEvents, ...] = ()

    def __add__(self, other: "Inspection") -> "Inspection":
        signs = tuple(dict.fromkeys(self.signs + other.signs))
        each, seen = self.each + other.each, self.seen + other.seen
        return Inspection(signs, each, seen, self.held + other.held)


class Sink(Protocol):
    """Response in chunks. `sent` counts its bytes, `last` is what was sent last."""

    sent: int
    last: bytes


class CutThrough:
    """Cut-through of one stream, from its first chunk after `resume` to `pause`."""

    __slots__ = ("_each", "_held", "_open", "_passed", "_seen", "_signs", "_sink", "_transport")

    def __init__(
        self, inspection: Inspection, sink: Sink, transport: asyncio.WriteTransport
    ) -> None:
        self._open = False
        self._held = inspection.held
        self._each = inspection.each
        self._seen = inspection.seen
        self._signs = inspection.signs
        self._passed: list[bytes] = []
        """What passed and was not shown."""
        self._sink = sink
        self._transport = transport

    def pause(self) -> None:
        """Leave what comes to the ordinary path, which has seen all that passed."""
        self._open = False
        if self._passed:
            self._show()

    def resume(self) -> None:
        """Pass on what comes, unless the ordinary path holds the beginning of an event."""
        self._open = not any(events.held for events in self._held)

    def take(self, data: bytes) -> bool:
        """Pass on a whole chunk, and return whether `data` was one; it begins where a chunk may begin."""
        size = _SIZE.match(data) if self._open and data.endswith(_END) else None
        if size is None:
            return False
        events = data[size.end() : -2]
        if int(size[1], 16) != len(events):
            return False
        for sign in self._signs:
            if sign in events:
                return False
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(data)
        sink = self._sink
        sink.sent += len(events)
        sink.last = events
        for seen in self._each:
            seen(events)
        if self._seen:
            self._passed.append(events)
            if len(self._passed) >= SHOWN_TOGETHER:
                self._show()
        return True

    def _show(self) -> None:
        events = b"".join(self._passed)
        self._passed.clear()
        for seen in self._seen:
            seen(events)
