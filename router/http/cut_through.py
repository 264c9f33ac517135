"""Cut-through of a stream: whole events that nobody looks into go from the worker's connection straight to the caller's.

Nearly all that streams are made of is such: one chunk of HTTP/1.1 that holds whole events. Anything else, any doubt, takes the
ordinary path, untouched.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from router.openai.sse import WholeEvents

SHOWN_TOGETHER = 4
"""Chunks that those who record see in one piece, at most."""

# Nothing before the digits, and no extensions after them (RFC 9112 7.1): as servers write it. 16 to 4,095 bytes.
_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{1,2})\r\n")
_END = b"\n\n\r\n"


class Sink(Protocol):
    """Response in chunks. `sent` counts its bytes, `last` is what was sent last."""

    sent: int
    last: bytes


class CutThrough:
    """Cut-through of one stream, from its first chunk after `resume` to `pause`.

    What parts of the ordinary path want of the stream, they add here, before it begins.
    """

    __slots__ = ("_passed", "_sink", "_transport", "each", "held", "kept", "open", "seen", "signs")

    def __init__(self, sink: Sink, transport: asyncio.WriteTransport) -> None:
        self.signs: list[bytes] = []
        """Events with one of them are the ordinary path's to read."""
        self.each: list[Callable[[bytes], object]] = []
        """Called with every other chunk."""
        self.seen: list[Callable[[bytes], object]] = []
        """Called with a few of them together."""
        self.kept: Callable[[list[bytes]], object] | None = None
        """Called with the same, each apart."""
        self.held: list[WholeEvents] = []
        """What keeps the beginnings of events."""
        self.open = False
        """Whether it passes on what comes; else it has nothing to show."""
        self._passed: list[bytes] = []
        """What passed and was not shown."""
        self._sink = sink
        self._transport = transport

    def pause(self) -> None:
        """Leave what comes to the ordinary path, which has seen all that passed."""
        self.open = False
        if self._passed:
            self._show()

    def resume(self) -> None:
        """Pass on what comes, unless the ordinary path holds the beginning of an event."""
        for events in self.held:
            if events.held:
                return
        self.open = True

    def take(self, data: bytes) -> bool:
        """Pass on a whole chunk, and return whether `data` was one; it begins where a chunk may begin."""
        size = _SIZE.match(data) if self.open and data.endswith(_END) else None
        if size is None:
            return False
        events = data[size.end() : -2]
        if int(size[1], 16) != len(events):
            return False
        for sign in self.signs:
            if sign in events:
                return False
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(data)
        sink = self._sink
        sink.sent += len(events)
        sink.last = events
        for seen in self.each:
            seen(events)
        self._passed.append(events)
        if len(self._passed) >= SHOWN_TOGETHER:
            self._show()
        return True

    def _show(self) -> None:
        passed, self._passed = self._passed, []
        if self.kept is not None:
            self.kept(passed)
        if self.seen:
            events = b"".join(passed)
            for seen in self.seen:
                seen(events)
