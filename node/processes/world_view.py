"""World as a helper knows it: what the first told it last. No I/O.

The records are the frames that their owners signed, and are checked here as they are everywhere.
"""

from node.processes.protocol import Forgotten, Seen, Silent, Table, Unreadable
from registry import wire
from registry.catalog import Catalog, Signed
from registry.errors import InvalidFrame
from registry.intake.access_list import guests
from registry.members.liveness import Presence
from registry.records import PeerId, Reach, Standing
from registry.settings import RegistrySettings
from router.workers import Workers


class View:
    """The newest of everything, for a router to read."""

    def __init__(self, own: PeerId, settings: RegistrySettings) -> None:
        self.catalog = Catalog()
        self.workers = Workers()
        self._own = own
        self._guests = guests(own, allow=settings.allow, deny=settings.deny)
        self._presence: dict[PeerId, Presence] = {}
        self._silent: set[PeerId] = set()

    def take(self, word: Table | Seen | Forgotten | Silent) -> frozenset[PeerId]:
        """Take in what the first tells; return whose record or presence that changed. Raise `Unreadable`."""
        match word:
            case Table(workers):
                self.workers = Workers.of(workers)
            case Silent(node, silent):
                (self._silent.add if silent else self._silent.discard)(node)
            case Seen(node, presence, frame):
                self._presence[node] = presence
                if frame:
                    self.catalog = self.catalog.merge([_record(frame)])
                return frozenset({node})
            case Forgotten(node):
                self._presence.pop(node, None)
                self._silent.discard(node)
                self.catalog = self.catalog.without(node)
                return frozenset({node})
        return frozenset()

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us."""
        return self._presence.get(node, Presence.LOST)

    def silent(self, node: PeerId) -> bool:
        """Say whether a node was silent when it was looked at last."""
        return node in self._silent

    def admits(self, peer: PeerId) -> bool:
        """Say whether a peer may take part here."""
        return self._guests.admits(peer)

    def reach(self, peer: PeerId) -> Reach | None:
        """Say how a node is reached."""
        held = self.catalog.held.get(peer)
        return held.record.reach if held else None

    def draining(self) -> bool:
        """Say whether this node takes nothing new."""
        held = self.catalog.held.get(self._own)
        return held is not None and held.record.standing is not Standing.SERVING


def _record(frame: bytes) -> Signed:
    try:
        word = wire.decode(frame)
    except InvalidFrame as error:
        raise Unreadable("the first process told what nobody signed") from error
    if not isinstance(word, Signed):
        raise Unreadable("the first process told what is no record")
    return word
