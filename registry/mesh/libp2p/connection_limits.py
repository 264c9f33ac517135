"""Limits of incoming connections, whole or still shaking hands: all together, and by address.

A machine can have as many identities as it likes, but not as many addresses. Several nodes may share one, behind NAT or at one
site, so the bound by address is generous, and as many connections again may be begun in the `RENEWED` seconds after.
"""

from collections import Counter

from registry.intake.rate import Pace

RENEWED = 60.0
"""Seconds in which an address may begin anew as many connections as it may hold."""


class Callers:
    """Counts the connections that others opened; time is an argument."""

    def __init__(self, *, most: int, per_address: int) -> None:
        self._most = most
        self._per_address = per_address
        self._open: Counter[str] = Counter()
        self._pace = Pace(rate=per_address / RENEWED, burst=2 * per_address)

    def enter(self, address: str, now: float) -> str:
        """Count a connection that begins; return why it is refused, empty when it is not."""
        if self._open.total() >= self._most:
            return f"{self._most} incoming connections are open"
        if self._open[address] >= self._per_address:
            return f"one address holds {self._per_address} connections"
        if not self._pace.allows(address, now):
            return "one address begins connections too often"
        self._open[address] += 1
        return ""

    def leave(self, address: str) -> None:
        """Count a connection that ended."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
