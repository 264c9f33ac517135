"""Recording of what a caller was sent of a stream, for the worker that goes on where the present one dies."""

import zlib

BLOCK = 4 * 1024
"""Bytes of a stream that are compressed together."""

_EXAMPLE_BYTES = 1024

# Raw, with room for a block and its example: 64 KiB while it is compressed.
_WINDOW_BITS, _MEMORY_LEVEL = -13, 6

MOST_KEPT = 128 * 1024
"""Bytes that are kept of one stream, compressed: about 8,000 tokens, which have 2 MB of events. Longer ones are not continued."""


class Recording:
    """What a caller was sent of a stream: compressed, and forgotten where there is too much of it.

    Events are alike, so the beginning of a stream is the dictionary of its later blocks.
    """

    __slots__ = ("_blocks", "_example", "_kept", "_last", "_waiting")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._example = b""
        self._kept = 0
        self._last: list[bytes] = []
        self._waiting = 0

    def add(self, sent: bytes) -> None:
        """Take in what was sent."""
        self._last.append(sent)
        self._waiting += len(sent)
        if self._waiting >= BLOCK:
            self._compress()

    @property
    def last(self) -> bytes:
        """The end of it, up to one block; nothing where it was too much."""
        if self._kept > MOST_KEPT:
            return b""
        return b"".join(self._last) or (self._block(-1) if self._blocks else b"")

    def whole(self) -> bytes | None:
        """Return all of it; `None` where it was too much."""
        if self._kept > MOST_KEPT:
            return None
        return b"".join((*map(self._block, range(len(self._blocks))), *self._last))

    def _compress(self) -> None:
        events = b"".join(self._last)
        self._last, self._waiting = [], 0
        if self._kept > MOST_KEPT:
            return
        self._example = self._example or events[:_EXAMPLE_BYTES]
        packing = zlib.compressobj(
            1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=self._example
        )
        block = packing.compress(events) + packing.flush()
        self._kept += len(block)
        self._blocks.append(block)
        if self._kept > MOST_KEPT:
            self._blocks.clear()

    def _block(self, number: int) -> bytes:
        return zlib.decompressobj(_WINDOW_BITS, zdict=self._example).decompress(
            self._blocks[number]
        )
