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

MOST_BYTES = 16 * 1024
"""Bytes of the largest chunk that is passed on so."""

# Nothing before the digits, and no extensions after them (RFC 9112 7.1): as servers write it.
_SIZE = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,3})\r\n")


@dataclass(frozen=True, slots=True)
class Watch:
    """What parts of the ordinary path want of a stream.

    Events with one of the `signs` are theirs to read. `seen` is called with all others. `held` keep the beginnings of events.
    """

    signs: tuple[bytes, ...] = ()
    seen: tuple[Callable[[bytes], object], ...] = ()
    held: tuple[WholeEvents, ...] = ()

    def __add__(self, other: "Watch") -> "Watch":
        signs = tuple(dict.fromkeys(self.signs + other.signs))
        return Watch(signs, self.seen + other.seen, self.held + other.held)


class Sink(Protocol):
    """Response in chunks. `sent` counts its bytes, `last` is what was sent last."""

    sent: int
    last: bytes


class CutThrough:
    """Cut-through of one stream, from its first chunk after `resume` to `pause`."""

    __slots__ = ("_held", "_open", "_seen", "_signs", "_sink", "_transport")

    def __init__(self, watch: Watch, sink: Sink, transport: asyncio.WriteTransport) -> None:
        self._open = False
        self._held = watch.held
        self._seen = watch.seen
        self._signs = watch.signs
        self._sink = sink
        self._transport = transport

    def pause(self) -> None:
        """Leave what comes to the ordinary path."""
        self._open = False

    def resume(self) -> None:
        """Pass on what comes, unless the ordinary path holds the beginning of an event."""
        self._open = not any(events.held for events in self._held)

    def take(self, data: bytes) -> bool:
        """Pass on a whole chunk, and return whether `data` was one; it begins where a chunk may begin."""
        if not self._open or len(data) > MOST_BYTES or not data.endswith(b"\r\n"):
            return False
        size = _SIZE.match(data)
        if size is None:
            return False
        events = data[size.end() : -2]
        if int(size[1], 16) != len(events) or not events.endswith(b"\n\n"):
            return False
        for sign in self._signs:
            if sign in events:
                return False
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        for seen in self._seen:
            seen(events)
        sink = self._sink
        sink.sent += len(events)
        sink.last = events
        transport.write(data)
        return True
