"""Texts in which similar events of a stream differ, and search in events; `event_texts.c` is the form that wheels have."""


def event_texts(
    events: bytes, begin: bytes, end: bytes, signs: tuple[bytes, ...], /
) -> tuple[bytes, int, int]:
    r"""Return what stands between `begin` and `end` in each of the first events, the number of these events, and their bytes.

    The texts are lines. The first event that begins or ends otherwise, contains a sign, or whose text contains a line feed or a
    zero byte, ends the search. `end` ends with the event's blank line; no sign occurs in `begin` or `end` alone.
    """
    texts: list[bytes] = []
    line = end.find(b"\n")
    offset = 0
    while line >= 0 and events.startswith(begin, offset):
        first = offset + len(begin)
        last = events.find(b"\n", first) - line
        stop = last + len(end)
        if last < first or events[last:stop] != end or events.find(b"\0", first, last) >= 0:
            break
        if any(events.find(sign, offset, stop) >= 0 for sign in signs):
            break
        texts.append(events[first:last] + b"\n")
        offset = stop
    return b"".join(texts), len(texts), offset


def contains(events: bytes, searched: bytes, /) -> bool:
    """Return whether bytes occur in others. Python's `in` tries them as a number first, and drops the exception."""
    return searched in events
