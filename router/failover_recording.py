"""Recording of what a caller was sent of a stream, for the worker that goes on where the present one dies."""

import zlib

BLOCK = 2048
"""Fewest bytes that are compressed together, without what events have in common."""

MOST_KEPT = 128 * 1024
"""Most compressed bytes kept of one stream: 8,000 tokens or more, whose events have 2 MB. Longer ones are not continued."""

TOGETHER = 4
"""Most pieces that are kept as they came."""

LARGE = 4096
"""Bytes of a piece above which it is abridged at once."""

_LENGTH_BYTES = 4
_EVENT_END = b"\n\n"
_MARK = b"\0"
_UNLIKE = 4  # parts of three events

# Raw deflate, with room for a block: 32 KiB of memory during compression.
_WINDOW_BITS, _MEMORY_LEVEL = -12, 5


class Recording:
    """What a caller was sent of a stream: abridged, compressed, and dropped if there is too much of it.

    Events are alike, so each is a line with only what differs. After a zero byte come bytes of another form: their length, and
    all of them. The form of the events that follow is taken from them.
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
        """Compressed blocks in a row; each marks its own end."""
        self._too_much = False

    def add(self, sent: bytes) -> None:
        """Take in bytes that were sent."""
        if len(sent) <= LARGE:
            self.keep([sent])
        else:
            newest, self._newest = self._newest, []
            self._abridge(b"".join(newest))
            self._abridge(sent)
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
            self._abridge(b"".join(newest))
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

    def _abridge(self, events: bytes) -> None:
        if self._too_much:
            return
        if self._form == _NO_FORM and len(events) > LARGE:
            # The form is learnt from the first events, so that the others take little room.
            at = 0
            for _ in range(_UNLIKE):
                at = events.find(_EVENT_END, at, LARGE) + len(_EVENT_END)
                if at < len(_EVENT_END):
                    break
            else:
                self._store(events[:at])
                events = events[at:]
        rest = self._in_lines(events)
        if rest:
            self._store(rest)
        if len(self._abridged) >= BLOCK:
            self._compress()

    def _in_lines(self, events: bytes) -> bytes:
        """Append a line for each event of the known form, and return the rest, from the first one of another form."""
        begin, end = self._form
        if not begin:
            return events
        # A search for all that stands between two texts takes four times the instructions.
        parts = events.split(_EVENT_END)
        inside = end[: -len(_EVENT_END)]
        least, at = len(begin) + len(inside), 0
        lines: list[bytes] = []
        for part in parts[:-1]:
            if len(part) < least or not (part.startswith(begin) and part.endswith(inside)):
                break
            lines.append(part[len(begin) : len(part) - len(inside)])
            at += len(part) + len(_EVENT_END)
        told = b"\n".join(lines)
        if not lines or told.count(b"\n") >= len(lines) or told.find(_MARK) >= 0:
            return events
        self._abridged += told
        self._abridged += b"\n"
        return events[at:]

    def _store(self, events: bytes) -> None:
        """Append events in full, and take their form."""
        self._abridged += b"%b%b%b" % (_MARK, len(events).to_bytes(_LENGTH_BYTES, "big"), events)
        form = _form_of(events)
        if form is not None:
            known, self._form = self._form != _NO_FORM, form
            if not known:
                # Many streams have no other event stored in full.
                self._compress()

    def _compress(self) -> None:
        packing = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
        self._blocks += packing.compress(self._abridged) + packing.flush()
        self._abridged.clear()
        if len(self._blocks) > MOST_KEPT:
            self._too_much = True
            self._blocks.clear()


_Form = tuple[bytes, bytes]
"""How events begin and end."""

_NO_FORM = (b"", b"")


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


def _unpacked(blocks: bytes) -> bytes:
    """Return what compressed blocks hold."""
    events: list[bytes] = []
    while blocks:
        unpacking = zlib.decompressobj(_WINDOW_BITS)
        events.append(unpacking.decompress(blocks))
        blocks = unpacking.unused_data
    return b"".join(events)


def _unabridged(abridged: bytes) -> list[bytes]:
    """Return abridged events in full, in pieces."""
    pieces: list[bytes] = []
    begin, end = _NO_FORM
    at = 0
    while at < len(abridged):
        if abridged.startswith(_MARK, at):
            at += len(_MARK)
            length = int.from_bytes(abridged[at : at + _LENGTH_BYTES], "big")
            at += _LENGTH_BYTES
            events = abridged[at : at + length]
            pieces.append(events)
            at += length
            begin, end = _form_of(events) or (begin, end)
        else:
            found = abridged.find(_MARK, at)
            ends = found if found >= 0 else len(abridged)
            pieces += (begin, abridged[at : ends - 1].replace(b"\n", end + begin), end)
            at = ends
    return pieces
