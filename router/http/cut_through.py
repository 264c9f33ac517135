"""Cut-through of a stream: whole events that need no inspection go from the worker's connection straight to the caller's.

Streams consist almost entirely of such events: one chunk of HTTP/1.1 that holds whole events. Anything else, and anything in
doubt, takes the ordinary path, untouched.
"""

import asyncio
import re
from collections.abc import Callable

from router.openai.sse import WholeEvents

SHOWN_TOGETHER = 4
"""Maximum number of chunks that observers see together."""

# As servers write it: nothing before the digits, no extensions after them (RFC 9112 7.1). 16 to 4,095 bytes.
_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{1,2})\r\n")
# The end of an event with JSON, which the last event of a stream, `[DONE]`, is not.
_END = b"}\n\n\r\n"

_SIZES: dict[int, bytes] = {}
"""Size lines, as servers write them, of chunks that have been read, by the length of the whole chunk. They are few."""


class CutThrough:
    """Cut-through of one stream, from its first chunk after `resume` to `pause`.

    Parts of the ordinary path add here what they need of the stream, before it begins.
    """

    __slots__ = (
        "_passed",
        "_transport",
        "buffers",
        "is_active",
        "observers",
        "on_chunk",
        "sent",
        "signs",
        "take_known",
    )

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.signs: list[bytes] = []
        """Byte strings; events that contain one of them take the ordinary path."""
        self.take_known: Callable[[bytes], bool] | None = None
        """Takes in events if it knows that they need no further look, and returns whether it did; else `observers` see them."""
        self.on_chunk: Callable[[], object] | None = None
        """Called for each chunk that passes."""
        self.observers: list[Callable[[list[bytes]], object]] = []
        """Called with the events of a few chunks that passed, in a list that is never changed."""
        self.buffers: list[WholeEvents] = []
        """Buffers of the ordinary path that keep the beginnings of events."""
        self.is_active = False
        """Whether chunks are passed on; if not, none is left to show."""
        self.sent = 0
        """Bytes of the stream that have passed."""
        self._passed: list[bytes] = []
        """Events that passed and were not shown yet."""
        self._transport = transport

    def pause(self) -> None:
        """Leave what comes to the ordinary path, and show it what has passed."""
        self.is_active = False
        if self._passed:
            self._show()

    def resume(self) -> None:
        """Pass on what comes, unless the ordinary path holds the beginning of an event."""
        for buffer in self.buffers:
            if buffer.held:
                return
        self.is_active = True

    def try_pass(self, data: bytes) -> bool:
        """Pass on `data` if it is one whole chunk, and return whether it was; it begins where a chunk may begin."""
        if not self.is_active or not data.endswith(_END):
            return False
        size = _SIZES.get(len(data))
        if size is None or not data.startswith(size):
            size = _size_of(data)
            if not size:
                return False
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        events = data[len(size) : -2]
        is_known = self.take_known is not None and self.take_known(events)
        if not is_known and self._has_sign(events):
            return False
        transport.write(data)
        self.sent += len(events)
        if self.on_chunk is not None:
            self.on_chunk()
        if not is_known:
            self._passed.append(events)
            # What is known has to be taken in after it.
            if self.take_known is not None or len(self._passed) >= SHOWN_TOGETHER:
                self._show()
        return True

    def _has_sign(self, events: bytes) -> bool:
        # `in` takes twice as long as `find`, as it tries a number first.
        return any(events.find(sign) >= 0 for sign in self.signs)

    def look_for(self, sign: bytes) -> None:
        """Have events that contain `sign` take the ordinary path."""
        if sign not in self.signs:
            self.signs.append(sign)
            self.take_known = None

    def _show(self) -> None:
        passed, self._passed = self._passed, []
        for observe in self.observers:
            observe(passed)


def _size_of(data: bytes) -> bytes:
    """Return the size line of one whole chunk, empty if `data` is anything else."""
    line = _SIZE.match(data)
    if line is None or int(line[1], 16) != len(data) - line.end() - 2:
        return b""
    _SIZES[len(data)] = line[0]
    return line[0]
