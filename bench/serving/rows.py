"""How is a figure told? What was asked for, what was seen, and whether that is what was wanted."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its goal."""

    what: str
    goal: str
    seen: str
    kept: bool


def table(rows: Iterable[Row]) -> str:
    """Lay out rows; a miss says so."""
    lines = ["| what | goal | seen | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.goal} | {row.seen} | {'' if row.kept else '**missed**'} |"
        for row in rows
    ]
    return "\n".join(lines)
