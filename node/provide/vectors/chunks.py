"""Chunks of a text, each short enough for one embedding. A token is taken for four characters."""

from collections.abc import Iterator

CHARACTERS = 4
"""Characters of a token, roughly."""

_NEAR = 200


def cut(text: str, size: int, overlap: int) -> Iterator[str]:
    """Go through the chunks of a text: `size` and `overlap` are in tokens. A chunk ends between words where it can."""
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
        # What was shortened is not lost between two chunks.
        begin = min(begin + step, end)
