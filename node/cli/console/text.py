"""Output for terminals: tables for people, JSON for machines.

Names come from other machines: characters that control a terminal are never printed unchanged.
"""

import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from registry.clock import duration

_GAP = "  "
ID = "ID"
"""Heading of a column of nodes' ids."""

_LEAST = 6
SHORT_ID = 14
"""Least characters of an id that are shown: all ids begin with the same eight."""

# Unicode general categories: control, surrogate; format, line separator, paragraph separator.
_CONTROLS = frozenset({"Cc", "Cs"})
_UNSEEN = _CONTROLS | {"Cf", "Zl", "Zp"}
# Unicode's Bidi_Control characters and their deprecated relatives, which change the order in which a text is shown.
BIDIRECTIONAL = frozenset(
    map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070)))
)


def say_json(value: object) -> None:
    """Print a value as JSON."""
    print(json_text(value))


def json_text(value: object) -> str:
    """Return a value as JSON in which every invisible character is escaped, as texts may come from anywhere."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(
        json.dumps(c)[1:-1] if c != "\n" and unicodedata.category(c) in _UNSEEN else c for c in text
    )


def say_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    none: str,
    beneath: Sequence[str] = (),
    wide: bool = True,
) -> None:
    """Print aligned columns under their heads, or the sentence `none` if there are no rows.

    A text in `beneath` follows its row on a line of its own. Without `wide`, the table is cut to the terminal's width, if
    there is a terminal.
    """
    lines = table_lines(heads, rows, beneath=beneath, room=0 if wide else terminal_columns())
    print("\n".join(lines) if len(lines) > 1 else none)


def table_lines(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    beneath: Sequence[str] = (),
    room: int = 0,
) -> list[str]:
    """Return the lines of a table, its heads first, cut to `room` columns; 0 for no limit."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    if room:
        widths = narrowed(widths, heads, room)
    left_out = f"{_GAP}…" if len(widths) < len(heads) else ""
    lines = [_line(heads, widths) + left_out]
    for row, more in zip_longest(cells, beneath, fillvalue=""):
        lines.append(_line(row, widths))
        if more:
            text = f"{_GAP * 2}{plain(more)}"
            lines.append(cut(text, room) if room else text)
    return lines


def terminal_columns() -> int:
    """Return the terminal's columns; 0 if standard output is not a terminal, and nothing needs to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def narrowed(widths: Sequence[int], heads: Sequence[str], room: int) -> list[int]:
    """Return widths that fit into `room`: shrink the widest columns, and drop the last ones, for a …, if that is not enough.

    Columns keep a readable minimum. Ids stay whole, because a part of one does not identify a node.
    """
    shrunk = list(widths)
    least = [
        width if head == ID else min(width, max(_LEAST, _width(head)))
        for width, head in zip(widths, heads, strict=True)
    ]
    while len(shrunk) > 1 and _total(least[: len(shrunk)]) > room:
        if len(shrunk) == len(widths):
            room -= len(_GAP) + 1
        shrunk.pop()
    excess = _total(shrunk) - room
    for floors in (least, [1] * len(least)):
        while excess > 0 and (spare := [i for i, width in enumerate(shrunk) if width > floors[i]]):
            shrunk[max(spare, key=shrunk.__getitem__)] -= 1
            excess -= 1
    return shrunk


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def cut(text: str, width: int) -> str:
    """Return a text cut to so many columns, with … if it does not fit."""
    if _width(text) <= width:
        return text
    prefix, remaining = "", width - 1
    for c in text:
        remaining -= _width(c)
        if remaining < 0:
            break
        prefix += c
    return f"{prefix}…"


def shown_ids(ids: Iterable[str], *, wide: bool) -> Mapping[str, str]:
    """Map each node's id to its shown form: whole, or on a terminal the shortest prefix that is unique among them."""
    all_ids = set(ids)
    length = max(map(len, all_ids), default=0)
    if not wide and sys.stdout.isatty():
        length = next(
            n for n in range(SHORT_ID, 1000) if len({i[:n] for i in all_ids}) == len(all_ids)
        )
    return {full: full[:length] for full in all_ids}


def say_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one `name  value` pair per line, aligned."""
    rows = [(name, plain(str(value))) for name, value in fields]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}{_GAP}{value}")


def note(text: str) -> None:
    """Print a message on standard error, apart from the output."""
    print(text, file=sys.stderr, flush=True)


def plain(text: str) -> str:
    """Replace invisible characters: line ends, control, direction and formatting characters."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNSEEN else c for c in text
    )


def prose(text: str) -> str:
    """Replace control and direction characters, but keep lines, tabs and joiners, which a model's answer may need."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if c in BIDIRECTIONAL or (unicodedata.category(c) in _CONTROLS and c not in "\n\t")
        else c
        for c in text
    )


def load_of(replicas: Sequence[Mapping[str, Any]]) -> str:
    """Format the total load of replicas, with the age of the oldest report: `3 of 8 in flight, ~41 tokens/s, 1.2 s ago`."""
    if not replicas:
        return "-"
    slots = [r["slots"] for r in replicas]
    of_slots = f" of {sum(slots)}" if all(slots) else ""
    parts = [f"{sum(r['in_flight'] for r in replicas)}{of_slots} in flight"]
    if of_slots and any(r["learned"] for r in replicas):
        parts.append(f"capacity: learned {sum(slots)}")
    if queued := sum(r["queued"] for r in replicas):
        parts.append(f"{queued} queued")
    if rate := sum(r["rate"] for r in replicas):
        parts.append(f"~{rate:.0f} tokens/s")
    if len(replicas) == 1 and replicas[0]["first_byte"] is not None:
        parts.append(f"first byte in {duration(replicas[0]['first_byte'])}")
    if age := max(r["age"] for r in replicas):
        parts.append(f"{duration(age)} ago")
    return ", ".join(parts)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Columns beyond `widths` are dropped.
    fitting = [cut(cell, width) for cell, width in zip(cells, widths, strict=False)]
    padded = (
        cell + " " * (width - _width(cell)) for cell, width in zip(fitting, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Count terminal columns: wide East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
