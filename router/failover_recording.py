"""Recording of what a caller was sent of a stream, for the worker that goes on where the present one dies."""

import zlib

BLOCK = 1024
"""Fewest bytes that are compressed together, without what events have in common."""

MOST_KEPT = 128 * 1024
"""Most compressed bytes kept of one stream: 8,000 tokens or more, whose events have 2 MB. Longer ones are not continued."""

TOGETHER = 4
"""Most pieces that are kept as they came."""

LARGE = 4096
"""Bytes of a piece above which it is abridged at once."""

_EXAMPLE_BYTES = 512
_LENGTH_BYTES = 4
_EVENT_END = b"\n\n"
_UNLIKE = 4  # parts of three events

# Raw deflate, with room for a block and its example: 32 KiB of memory during compression.
_WINDOW_BITS, _MEMORY_LEVEL = -12, 5
_STEP = 2 * BLOCK  # bytes that are unpacked at a time


class Recording:
    """What a caller was sent of a stream: abridged, compressed, and dropped if there is too much of it.

    Events are alike, so each is a line with only what differs. After an empty line come bytes of another form: their length,
    and all of them. The form of the events that follow is taken from them.
    """

    __slots__ = ("_abridged", "_before", "_blocks", "_form", "_newest", "_too_much")

    def __init__(self) -> None:
        self._newest: list[bytes] = []
        """The last pieces; other objects hold the same list."""
        self._before = b""
        """The piece before these, if these are only one."""
        self._form = _NO_FORM
        self._abridged = bytearray()
        """What is not compressed yet of all earlier pieces."""
        self._blocks = bytearray()
        """Compressed blocks in a row; each marks its own end. The beginning of the first is the dictionary of the others."""
        self._too_much = False

    def add(self, sent: bytes) -> None:
        """Take in bytes that were sent."""
        if len(sent) <= LARGE:
            self.keep([sent])
        else:
            newest, self._newest = self._newest, []
            self._abridge(newest)
            self._abridge([sent])
            # At least the last event is kept.
            at = sent.rfind(_EVENT_END, 0, len(sent) - LARGE)
            self._before = sent[at + len(_EVENT_END) :] if at >= 0 else sent

    def keep(self, pieces: list[bytes]) -> None:
        """Take in small pieces; the caller must not change the list afterwards."""
        newest = self._newest
        if len(newest) + len(pieces) <= TOGETHER:
            self._newest = newest + pieces if newest else pieces
        else:
            self._newest = pieces
            self._abridge(newest)
            self._before = newest[-1] if len(pieces) == 1 else b""

    @property
    def last(self) -> bytes:
        """The last few pieces; empty if there was too much."""
        return b"" if self._too_much else b"".join((self._before, *self._newest))

    def whole(self) -> bytes | None:
        """Return all that was sent; `None` if there was too much."""
        if self._too_much:
            return None
        return b"".join(
            (*_unabridged(_unpacked(bytes(self._blocks)) + self._abridged), *self._newest)
        )

    def _abridge(self, pieces: list[bytes]) -> None:
        if self._too_much or not pieces:
            return
        begin, end = self._form
        least = len(begin) + len(end)
        lines = [
            piece[len(begin) : -len(end)]
            for piece in pieces
            if len(piece) > least and piece.startswith(begin) and piece.endswith(end)
        ]
        told = b"\n".join(lines)
        abridged = self._abridged
        if len(lines) == len(pieces) and told.count(b"\n") == len(lines) - 1:
            abridged += told
            abridged += b"\n"
        else:
            events = b"".join(pieces)
            abridged += b"\n%b%b" % (len(events).to_bytes(_LENGTH_BYTES, "big"), events)
            form = _form_of(events)
            if form is not None:
                known, self._form = self._form != _NO_FORM, form
                if not known:
                    # Many streams have no other event stored in full.
                    self._compress()
        if len(abridged) >= BLOCK:
            self._compress()

    def _compress(self) -> None:
        packing = zlib.compressobj(
            1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=_example_in(self._blocks)
        )
        self._blocks += packing.compress(self._abridged) + packing.flush()
        self._abridged.clear()
        if len(self._blocks) > MOST_KEPT:
            self._too_much = True
            self._blocks.clear()


_Form = tuple[bytes, bytes]
"""How events begin and end."""

_NO_FORM = (b'"', b'"')  # as no event of JSON begins


def _form_of(events: bytes) -> _Form | None:
    """Return the common beginning and end of the last two events, around the texts that differ; `None` if there is none."""
    parts = events.split(_EVENT_END)
    # The first event is often unlike those that follow.
    if len(parts) < _UNLIKE or parts[-1]:
        return None
    one, two = parts[-3], parts[-2]
    if len(one) > LARGE:
        return None
    begin = one[: one.rfind(b'"', 0, _alike(one, two)) + 1]
    at = one.find(b'"', len(one) - _alike(one[::-1], two[::-1]))
    return (begin, one[at:] + _EVENT_END) if begin and at > 0 else None


def _alike(one: bytes, two: bytes) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(two))
    for at in range(most):
        if one[at] != two[at]:
            return at
    return most


def _example_in(blocks: bytes | bytearray) -> bytes:
    """Return the beginning of what the first block holds; empty if there is no block."""
    first = bytes(blocks[: 2 * _EXAMPLE_BYTES])
    return zlib.decompressobj(_WINDOW_BITS).decompress(first, _EXAMPLE_BYTES)


def _unpacked(blocks: bytes) -> bytes:
    """Return what compressed blocks hold."""
    events: list[bytes] = []
    example, at = b"", 0
    while at < len(blocks):
        unpacking = zlib.decompressobj(_WINDOW_BITS, zdict=example)
        while not unpacking.eof:
            piece = blocks[at : at + _STEP]
            events.append(unpacking.decompress(piece))
            at += len(piece) - len(unpacking.unused_data)
        example = example or _example_in(blocks)
    return b"".join(events)


def _unabridged(abridged: bytes) -> list[bytes]:
    """Return abridged events in full, in pieces."""
    pieces: list[bytes] = []
    begin, end = _NO_FORM
    at = 0
    while at < len(abridged):
        if abridged[at : at + 1] == b"\n":
            length = int.from_bytes(abridged[at + 1 : at + 1 + _LENGTH_BYTES], "big")
            at += 1 + _LENGTH_BYTES
            events = abridged[at : at + length]
            pieces.append(events)
            at += length
            begin, end = _form_of(events) or (begin, end)
        else:
            ends = abridged.find(b"\n", at)
            pieces += (begin, abridged[at:ends], end)
            at = ends + 1
    return pieces
