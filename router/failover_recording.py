"""Recording of what a caller was sent of a stream, for the worker that goes on where the present one dies."""

import zlib

from router.openai.event_texts import event_texts

BLOCK = 8192
"""Fewest bytes that are compressed together, without what events have in common. Shorter answers are not compressed."""

MOST_KEPT = 128 * 1024
"""Most compressed bytes kept of one stream: 8,000 tokens or more, whose events have 2 MB. Longer ones are not continued."""

LARGE = 4096
"""Bytes of a piece above which its first events tell the form of the others; and the longest form."""

_NEWEST = 4
"""Most pieces that `newest` has."""

_EVENT_END = b"\n\n"
_FEW = 4  # events

# What follows in a record: events in full, after their length; or how events begin and end, after both lengths.
_EVENTS, _FORM = b"\0e", b"\0f"
_MARK = b"\0"
_LENGTH_BYTES = 4

# Raw deflate, with room for a block: 32 KiB of memory during compression.
_WINDOW_BITS, _MEMORY_LEVEL = -12, 5


class Recording:
    """What a caller was sent of a stream: abridged, compressed, and dropped if there is too much of it.

    Events are alike, so of most only the text in which they differ is kept, as a line. Others are kept in full, in records that
    begin with a zero byte.
    """

    __slots__ = (
        "_abridged",
        "_begin",
        "_blocks",
        "_end",
        "_is_too_long",
        "_learns_at",
        "_newest",
        "_signs",
        "_unlike_count",
    )

    def __init__(self, signs: tuple[bytes, ...] = ()) -> None:
        """Start with nothing. `record_similar` leaves events that contain one of these byte strings."""
        self._signs = signs
        self._begin = self._end = b""
        """How events begin and end, once that is known."""
        # The first event is often unlike those that follow.
        self._unlike_count, self._learns_at = -1, 2
        """Events of another form since the last one of this form, and their number from which on the form is learnt anew."""
        self._newest: list[bytes] = []
        self._abridged = bytearray()
        """What is not compressed yet."""
        self._blocks = bytearray()
        """Compressed blocks in a row; each marks its own end."""
        self._is_too_long = False

    def record_similar(self, events: bytes, *, all_or_none: bool = False) -> tuple[int, int]:
        """Take in the first events as far as they have the form of earlier ones; return their number, and their bytes.

        With `all_or_none`, take none if there are others.
        """
        if not self._begin:
            return 0, 0
        texts, count, size = event_texts(events, self._begin, self._end, self._signs)
        if count == 0 or (all_or_none and size < len(events)):
            return 0, 0
        self._unlike_count, self._learns_at = 0, 2
        self._keep(texts)
        return count, size

    def record(self, events: bytes) -> None:
        """Take in events of any form."""
        newest = events
        if len(events) > LARGE:
            # At least the last event is kept.
            index = events.rfind(_EVENT_END, 0, len(events) - LARGE)
            newest = events[index + len(_EVENT_END) :] if index >= 0 else events
        self._newest = [*self._newest, newest][-_NEWEST:]
        first = b"" if self._begin else _first_events(events)
        if first:
            # The form is learnt from the first events, so that the others take little room.
            self._store(first, first)
            events = events[len(first) :]
            events = events[self.record_similar(events)[1] :]
        if events:
            self._store(events, b"".join(self._newest[-2:]))

    def _store(self, events: bytes, last: bytes) -> None:
        """Keep events in full; learn the form of the last two if enough events were unlike those before."""
        self._keep(b"%b%b%b" % (_EVENTS, len(events).to_bytes(_LENGTH_BYTES, "big"), events))
        self._unlike_count += max(1, events.count(_EVENT_END))
        if self._unlike_count < self._learns_at:
            return
        form = _learn_form(last)
        if form is None:
            return
        # Of a stream whose events have no form, few are compared.
        self._learns_at = 2 * self._unlike_count
        begin, end = form
        if not begin or any(sign in begin or sign in end for sign in self._signs):
            return
        self._begin, self._end = begin, end
        lengths = len(begin).to_bytes(_LENGTH_BYTES, "big") + len(end).to_bytes(
            _LENGTH_BYTES, "big"
        )
        self._keep(b"%b%b%b%b" % (_FORM, lengths, begin, end))

    def _keep(self, abridged: bytes) -> None:
        if self._is_too_long:
            return
        self._abridged += abridged
        if len(self._abridged) < BLOCK:
            return
        compressor = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
        self._blocks += compressor.compress(self._abridged) + compressor.flush()
        self._abridged.clear()
        if len(self._blocks) > MOST_KEPT:
            self._is_too_long = True
            self._blocks.clear()

    @property
    def newest(self) -> bytes:
        """The last few pieces of those that `record` took."""
        return b"".join(self._newest)

    def read_all(self) -> bytes | None:
        """Return all that was sent; `None` if there was too much."""
        if self._is_too_long:
            return None
        return b"".join(_expand(_decompress(bytes(self._blocks)) + self._abridged))


def _first_events(events: bytes) -> bytes:
    """Return the first few of more than `LARGE` bytes of events; none if they are longer than that."""
    if len(events) <= LARGE:
        return b""
    end = 0
    for _ in range(_FEW):
        end = events.find(_EVENT_END, end, LARGE) + len(_EVENT_END)
        if end < len(_EVENT_END):
            return b""
    return events[:end]


def _learn_form(events: bytes) -> tuple[bytes, bytes] | None:
    """Return the common beginning and end of the last two events, around the texts that differ; `None` if they do not differ.

    Both are empty if there is none.
    """
    parts = events.rsplit(_EVENT_END, 3)
    if len(parts) < 3 or parts[-1]:
        return None
    first, second = parts[-3], parts[-2]
    if first == second or len(first) > LARGE:
        return None
    begin = first[: first.rfind(b'"', 0, _common_prefix_length(first, second)) + 1]
    index = first.find(b'"', len(first) - _common_prefix_length(first[::-1], second[::-1]))
    return (begin, first[index:] + _EVENT_END) if begin and index > 0 else (b"", b"")


def _common_prefix_length(left: bytes, right: bytes) -> int:
    """Return the length of the common prefix."""
    shortest = min(len(left), len(right))
    for index in range(shortest):
        if left[index] != right[index]:
            return index
    return shortest


def _decompress(blocks: bytes) -> bytes:
    """Return what compressed blocks hold."""
    abridged: list[bytes] = []
    while blocks:
        decompressor = zlib.decompressobj(_WINDOW_BITS)
        abridged.append(decompressor.decompress(blocks))
        blocks = decompressor.unused_data
    return b"".join(abridged)


def _expand(abridged: bytes) -> list[bytes]:
    """Return abridged events in full, in pieces."""
    pieces: list[bytes] = []
    begin = end = b""
    offset = 0

    def read_length() -> int:
        nonlocal offset
        offset += _LENGTH_BYTES
        return int.from_bytes(abridged[offset - _LENGTH_BYTES : offset], "big")

    while offset < len(abridged):
        if abridged.startswith(_EVENTS, offset):
            offset += len(_EVENTS)
            size = read_length()
            pieces.append(abridged[offset : offset + size])
            offset += size
        elif abridged.startswith(_FORM, offset):
            offset += len(_FORM)
            first, last = read_length(), read_length()
            begin = abridged[offset : offset + first]
            offset += first
            end = abridged[offset : offset + last]
            offset += last
        else:
            mark = abridged.find(_MARK, offset)
            stop = mark if mark >= 0 else len(abridged)
            pieces += (begin, abridged[offset : stop - 1].replace(b"\n", end + begin), end)
            offset = stop
    return pieces
