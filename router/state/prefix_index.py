"""Prefix index: which replica has read which beginning of a conversation, and how long ago. No I/O, no clock.

What a replica has read its cache may still hold; for how long, its node learns (`router.state.service_time`).
"""

from collections.abc import Mapping
from dataclasses import replace

from registry.records import Load, PeerId, Service
from registry.values import value_class
from router.openai.prefixes import Prefixes
from router.state.service_time import ServiceTime

MAX_PREFIXES = 65_536
"""Prefixes whose readers are remembered, about 250 bytes each; the one that was read longest ago makes room."""

MAX_READERS = 4
"""Replicas remembered for one prefix: those that read it last."""

_Key = tuple[PeerId, Service]


@value_class
class Read:
    """What a replica has read of a conversation: so many bytes, so many seconds ago."""

    size: int
    age: float


@value_class
class ReplicaAnswer:
    """What a node answers; `read` is `None` where its replica has read nothing of the conversation."""

    read: Read | None = None
    load: Load | None = None
    time: ServiceTime | None = None


NOBODY_READ: tuple[Mapping[_Key, Read], int] = ({}, 0)
"""What is known of a request that is no conversation."""


class PrefixIndex:
    """Who read which prefix last."""

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[tuple[_Key, float], ...]] = {}

    def take(self, key: _Key, said: Prefixes, now: float) -> None:
        """A replica reads a conversation."""
        readers = self._readers
        for prefix in said.chain:
            before = readers.pop(prefix.digest, ())
            if len(readers) >= MAX_PREFIXES:
                del readers[next(iter(readers))]
            others = [reader for reader in before if reader[0] != key]
            readers[prefix.digest] = ((key, now), *others[: MAX_READERS - 1])

    def hear(self, key: _Key, said: Prefixes, read: Read, now: float) -> None:
        """A replica's node says how much it has read of a conversation."""
        known = tuple(prefix for prefix in said.chain if prefix.size <= read.size)
        self.take(key, replace(said, chain=known), now - read.age)

    def read_by(
        self, said: Prefixes, now: float, *, of_batch: bool = False
    ) -> tuple[Mapping[_Key, Read], int]:
        """Return how much each replica has read of a conversation, and how many bytes of it all are thought to have.

        What a service says to all its chats all have read that serve it, though only the last few are remembered. Of a batch,
        which may hold the words of many services, that is thought only where as many are remembered as can be.
        """
        found: dict[_Key, Read] = {}
        everybodys = 0
        for place, prefix in enumerate(said.chain):
            readers = self._readers.get(prefix.digest)
            if readers is None:
                # Nobody has read more than who has read this.
                break
            if place < said.shared and not (of_batch and len(readers) < MAX_READERS):
                everybodys = prefix.size
                continue
            for key, at in readers:
                found[key] = Read(prefix.size, now - at)
        return found, everybodys
