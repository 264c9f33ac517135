"""Book of one process's receipts that are not in its node's chains yet. No I/O."""

from json.encoder import encode_basestring_ascii as _quoted
from typing import NamedTuple

from node.auth.receipts import Side
from registry.clock import Clock
from router.openai.usage import Usage

MAX_WAITING = 20_000
"""Receipts that wait for a store that does not work; beyond that, new receipts are lost, and an error is logged."""

_MOST_CHARACTERS = 100


class WaitingReceipt(NamedTuple):
    """Receipt for `peer`: Unix time in milliseconds, and its JSON exactly as in `Page.digest`."""

    peer: str
    at: int
    text: str


class ReceiptBook:
    """Receipts that one process has yet to write. Lives on one event loop."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._held: list[WaitingReceipt] = []
        self.lost = 0

    def add(
        self, side: Side, peer: str, request: str, model: str, usage: Usage | None, seconds: float
    ) -> None:
        """Add a receipt for an answer that has just ended well."""
        prompt = completion = "null"
        if usage is not None and not usage.estimated:
            prompt, completion = str(usage.prompt), str(usage.completion)
        at, milliseconds = int(self._wall() * 1000), int(seconds * 1000)
        request, model = _quoted(request[:_MOST_CHARACTERS]), _quoted(model[:_MOST_CHARACTERS])
        # Formatted by hand, as many are made in a second.
        text = (
            f'{{"at":{at},"completion":{completion},"milliseconds":{milliseconds},"model":{model},'
            f'"prompt":{prompt},"request":{request},"side":"{side}"}}'
        )
        self.take_in(WaitingReceipt(peer, at, text))

    def take_in(self, receipt: WaitingReceipt) -> None:
        """Add a receipt, of another process too; count it as lost if too many wait."""
        if len(self._held) < MAX_WAITING:
            self._held.append(receipt)
        else:
            self.lost += 1

    def take(self) -> tuple[WaitingReceipt, ...]:
        """Return, and remove, the receipts that were added since the last call."""
        held, self._held = self._held, []
        return tuple(held)
