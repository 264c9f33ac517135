"""Splitter of a text into chunks, each short enough for one embedding. A token counts as four characters."""

from collections.abc import Iterator

CHARACTERS = 4
"""Approximate characters of a token."""

_NEAR = 200


def cut(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the chunks of a text: `size` and `overlap` are in tokens. A chunk ends between words if possible."""
    longest, step = size * CHARACTERS, (size - overlap) * CHARACTERS
    begin = 0
    while begin < len(text):
        end = begin + longest
        if end < len(text):
            space = max(text.rfind(" ", end - _NEAR, end), text.rfind("\n", end - _NEAR, end))
            end = space if space > begin else end
        if found := text[begin:end].strip():
            yield found
        if end >= len(text):
            return
        # If a chunk was shortened to end between words, the next one begins at its end at the latest.
        begin = min(begin + step, end)
