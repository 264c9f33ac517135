"""Cut-through of a stream: whole events that nobody looks into go from the worker's connection straight to the caller's.

Nearly all that streams are made of is such: one chunk of HTTP/1.1 that holds whole events. Anything else, any doubt, takes the
ordinary path, untouched.
"""

import asyncio
import re
from collections.abc import Callable

from router.openai.sse import WholeEvents

SHOWN_TOGETHER = 4
"""Chunks that those who record see together, at most."""

# Nothing before the digits, and no extensions after them (RFC 9112 7.1): as servers write it. 16 to 4,095 bytes.
_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{1,2})\r\n")
_END = b"\n\n\r\n"

_SIZES: dict[int, bytes] = {}
"""The size lines, as servers write them, of chunks whose lines have been read, by the length of all. They are few."""


class CutThrough:
    """Cut-through of one stream, from its first chunk after `resume` to `pause`.

    What parts of the ordinary path want of the stream, they add here, before it begins.
    """

    __slots__ = ("_passed", "_transport", "each", "held", "open", "seen", "sent", "signs")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.signs: list[bytes] = []
        """Events with one of them are the ordinary path's to read."""
        self.each: Callable[[], object] | None = None
        """Called for each chunk that passes."""
        self.seen: list[Callable[[list[bytes]], object]] = []
        """Called with a few that passed, in a list that is never changed."""
        self.held: list[WholeEvents] = []
        """What keeps the beginnings of events."""
        self.open = False
        """Whether it passes on what comes; else it has nothing to show."""
        self.sent = 0
        """Bytes of the stream that have passed."""
        self._passed: list[bytes] = []
        """What passed and was not shown."""
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
        if not self.open or not data.endswith(_END):
            return False
        size = _SIZES.get(len(data))
        if size is None or not data.startswith(size):
            size = _size_of(data)
            if not size:
                return False
        events = data[len(size) : -2]
        for sign in self.signs:
            # As `in` looks for a number first, it takes twice as long.
            if events.find(sign) >= 0:
                return False
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(data)
        self.sent += len(events)
        if self.each is not None:
            self.each()
        self._passed.append(events)
        if len(self._passed) >= SHOWN_TOGETHER:
            self._show()
        return True

    def _show(self) -> None:
        passed, self._passed = self._passed, []
        for seen in self.seen:
            seen(passed)


def _size_of(data: bytes) -> bytes:
    """Return the size line of one whole chunk, nothing where `data` is another thing."""
    line = _SIZE.match(data)
    if line is None or int(line[1], 16) != len(data) - line.end() - 2:
        return b""
    _SIZES[len(data)] = line[0]
    return line[0]
