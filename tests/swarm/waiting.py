"""Waits with a limit, and output of the measured figures.

A figure is printed beside its goal in docs/performance.md; what is asserted is not the goal but the bound beyond which the
mechanism does not work at all, since the machine under a test may be slow, and busy with other things.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

POLL = 0.02
"""Seconds between two checks."""

SLACK = 3.0
"""How many times longer than meant something may take: a busy machine is late, what is broken never comes."""

BY_CHANCE = 0.1
"""Which share of many may be slow by chance. Without the mechanism under test it is every second request, or each."""


async def until(
    holds: Callable[[], Awaitable[bool]] | Callable[[], bool],
    *,
    within: float,
    otherwise: str | Callable[[], str],
    since: float | None = None,
) -> float:
    """Return the seconds after `since` (now, where it is not given) at which `holds` first held.

    `within` is the goal; the wait fails only after `SLACK` times as long.
    """
    began = time.monotonic() if since is None else since
    while True:
        result = holds()
        if result if isinstance(result, bool) else await result:
            return time.monotonic() - began
        if time.monotonic() - began >= SLACK * within:
            wrong = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"{wrong}: not within {within:g} s")
        await asyncio.sleep(POLL)


def few(outliers: int, total: int) -> bool:
    """Whether so many of a number of requests may have been slow by chance alone."""
    return outliers <= max(2, BY_CHANCE * total)


def show(label: str, **figures: float | str) -> None:
    """Print one line of figures; numbers are seconds unless their name says otherwise."""
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
    )
    print(f"\n  [{label}] {shown}", flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
