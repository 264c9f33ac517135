"""Receipts of one process that are not in its node's chains yet. No I/O."""

from node.auth.receipts import Receipt, Side
from registry.clock import Clock
from router.openai.usage import Usage

MAX_WAITING = 20_000
"""Receipts that wait for a store that does not work; of more the newest are lost, which the log says."""

_MOST_CHARACTERS = 100


class ReceiptBook:
    """What one process has to write down. Lives on one event loop."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._held: list[tuple[str, Receipt]] = []
        self.lost = 0

    def add(
        self, side: Side, peer: str, request: str, model: str, usage: Usage | None, seconds: float
    ) -> None:
        """Write down an answer that ended well just now."""
        prompt: int | None = None
        completion: int | None = None
        if usage is not None and not usage.estimated:
            prompt, completion = usage.prompt, usage.completion
        at, milliseconds = int(self._wall() * 1000), int(seconds * 1000)
        request, model = request[:_MOST_CHARACTERS], model[:_MOST_CHARACTERS]
        self.take_in(peer, Receipt(at, request, side, model, prompt, completion, milliseconds))

    def take_in(self, peer: str, receipt: Receipt) -> None:
        """Take in what another process has written down."""
        if len(self._held) < MAX_WAITING:
            self._held.append((peer, receipt))
        else:
            self.lost += 1

    def take(self) -> tuple[tuple[str, Receipt], ...]:
        """Return what was written down since this was asked last."""
        held, self._held = self._held, []
        return tuple(held)
