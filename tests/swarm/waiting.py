"""How long did it take? Waits until something holds, with a limit, and prints the figures that were seen."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

POLL = 0.02
"""Seconds between two looks."""


async def until(
    holds: Callable[[], Awaitable[bool]] | Callable[[], bool],
    *,
    within: float,
    otherwise: str,
    since: float | None = None,
) -> float:
    """Return the seconds after `since` (now, where it is not given) at which `holds` first held."""
    began = time.monotonic() if since is None else since
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return time.monotonic() - began
        assert time.monotonic() - began < within, f"{otherwise}: not within {within:g} s"
        await asyncio.sleep(POLL)


def show(what: str, **figures: float | str) -> None:
    """Print one line of figures; numbers are seconds unless their name says otherwise."""
    said = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
    )
    print(f"\n  [{what}] {said}", flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
