"""Flow: bytes as they arrive, which a reader awaits, or a listener takes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.http.cut_through import CutThrough

Listener = Callable[[], None]
"""Callback for news: new bytes, the end or a failure."""


class Flow:
    """Bytes as they arrive: a reader awaits them, or a listener is called on news and takes what has arrived."""

    __slots__ = ()

    def __aiter__(self) -> "Flow":
        return self

    async def __anext__(self) -> bytes:
        raise NotImplementedError

    def here(self) -> tuple[bytes, bool]:
        """Return the bytes that have arrived, possibly none, and whether no more can be read this way; raise `AnswerBroken`.

        No more can be read this way once the flow has ended, has broken off, or has to be awaited.
        """
        raise NotImplementedError

    @property
    def prompt(self) -> bool:
        """Whether a listener may do all its work within the call. If not, more of the same read may follow the call."""
        raise NotImplementedError

    def inspect(self, cut_through: "CutThrough") -> None:
        """Add to `cut_through` what the flow needs of the bytes that pass it by."""
        raise NotImplementedError

    def listen(self, listener: Listener | None, cut_through: "CutThrough | None" = None) -> None:
        """Set the listener, or remove it with `None`: then the idle timeout stops. Bytes that `cut_through` takes are no news."""
        raise NotImplementedError
