"""Book of one process's receipts that are not in its node's chains yet. No I/O."""

from node.auth.receipts import Receipt, Side
from registry.clock import Clock
from router.openai.usage import Usage

MAX_WAITING = 20_000
"""Receipts that wait for a store that does not work; beyond that, new receipts are lost, and an error is logged."""

_MOST_CHARACTERS = 100


class ReceiptBook:
    """Receipts that one process has yet to write. Lives on one event loop."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._held: list[tuple[str, Receipt]] = []
        self.lost = 0

    def add(
        self, side: Side, peer: str, request: str, model: str, usage: Usage | None, seconds: float
    ) -> None:
        """Add a receipt for an answer that has just ended well."""
        prompt: int | None = None
        completion: int | None = None
        if usage is not None and not usage.estimated:
            prompt, completion = usage.prompt, usage.completion
        at, milliseconds = int(self._wall() * 1000), int(seconds * 1000)
        request, model = request[:_MOST_CHARACTERS], model[:_MOST_CHARACTERS]
        self.take_in(peer, Receipt(at, request, side, model, prompt, completion, milliseconds))

    def take_in(self, peer: str, receipt: Receipt) -> None:
        """Add a receipt, of another process too; count it as lost if too many wait."""
        if len(self._held) < MAX_WAITING:
            self._held.append((peer, receipt))
        else:
            self.lost += 1

    def take(self) -> tuple[tuple[str, Receipt], ...]:
        """Return, and remove, the receipts that were added since the last call, with their peers."""
        held, self._held = self._held, []
        return tuple(held)
