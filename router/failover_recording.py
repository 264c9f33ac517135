"""Recording of what a caller was sent of a stream, for the worker that goes on where the present one dies."""

import zlib

BLOCK = 1536
"""Bytes of a stream that are compressed together, at least: the last that wait for more are all that is kept as it came."""

_EXAMPLE_BYTES = 512

# Raw, with room for a block and its example: 32 KiB while it is compressed.
_WINDOW_BITS, _MEMORY_LEVEL = -12, 5
_STEP = 2 * BLOCK  # bytes that are unpacked at a time

MOST_KEPT = 128 * 1024
"""Bytes that are kept of one stream, compressed: about 8,000 tokens, which have 2 MB of events. Longer ones are not continued."""


class Recording:
    """What a caller was sent of a stream: compressed, and forgotten where there is too much of it.

    Events are alike, so the beginning of a stream is the dictionary of its later blocks.
    """

    __slots__ = ("_at", "_blocks", "_example", "_last", "_too_much", "_waiting")

    def __init__(self) -> None:
        self._blocks = bytearray()
        """Blocks one behind the other: each says itself where it ends."""
        self._at = 0
        """Where the last of them begins."""
        self._example = b""
        self._last: list[bytes] = []
        self._waiting = 0
        self._too_much = False

    def add(self, sent: bytes) -> None:
        """Take in what was sent."""
        self._last.append(sent)
        self._waiting += len(sent)
        if self._waiting >= BLOCK:
            self._compress()

    @property
    def last(self) -> bytes:
        """The end of it, up to one block; nothing where it was too much."""
        return b"" if self._too_much else b"".join(self._last) or self._unpacked(self._at)

    def whole(self) -> bytes | None:
        """Return all of it; `None` where it was too much."""
        return None if self._too_much else b"".join((self._unpacked(0), *self._last))

    def _compress(self) -> None:
        events = b"".join(self._last)
        self._last, self._waiting = [], 0
        if self._too_much:
            return
        self._example = self._example or events[:_EXAMPLE_BYTES]
        packing = zlib.compressobj(
            1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=self._example
        )
        self._at = len(self._blocks)
        self._blocks += packing.compress(events) + packing.flush()
        if len(self._blocks) > MOST_KEPT:
            self._too_much = True
            self._blocks.clear()

    def _unpacked(self, at: int) -> bytes:
        """Return what the blocks from one on hold."""
        packed, events = bytes(self._blocks), list[bytes]()
        while at < len(packed):
            unpacking = zlib.decompressobj(_WINDOW_BITS, zdict=self._example)
            while not unpacking.eof:
                piece = packed[at : at + _STEP]
                events.append(unpacking.decompress(piece))
                at += len(piece) - len(unpacking.unused_data)
        return b"".join(events)
