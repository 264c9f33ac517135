"""Prefix index: which replica has read which beginning of a conversation, and how long ago. No I/O, no clock.

A replica's cache may still hold what it has read; its node learns for how long (`router.state.service_time`).
"""

from collections.abc import Mapping

from registry.records import Load, PeerId, Service
from registry.values import replace_fields, value_class
from router.openai.prefixes import Prefix, Prefixes
from router.state.service_time import ServiceTime

MAX_PREFIXES = 65_536
"""Prefixes whose readers are remembered, about 250 bytes each; the one that was read longest ago is evicted."""

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
    """Answer of a node about its replica; `read` is `None` where the replica has read nothing of the conversation."""

    read: Read | None = None
    load: Load | None = None
    time: ServiceTime | None = None


class PrefixIndex:
    """The replicas that last read each prefix."""

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[tuple[_Key, float], ...]] = {}

    def record_read(self, key: _Key, prefixes: Prefixes, now: float) -> None:
        """Note that a replica reads a conversation."""
        readers = self._readers
        # Most prefixes have one reader: all of a conversation share this value.
        alone = ((key, now),)
        for prefix in prefixes.chain:
            before = readers.pop(prefix.digest, ())
            if len(readers) >= MAX_PREFIXES:
                del readers[next(iter(readers))]
            others = [reader for reader in before if not _is_same_replica(reader[0], key)]
            readers[prefix.digest] = (*alone, *others[: MAX_READERS - 1]) if others else alone

    def record_reported(self, key: _Key, prefixes: Prefixes, read: Read, now: float) -> None:
        """Note how much of a conversation a replica has read, as its node says."""
        covered = tuple(prefix for prefix in prefixes.chain if prefix.size <= read.size)
        self.record_read(key, replace_fields(prefixes, chain=covered), now - read.age)

    def find_readers(
        self, prefixes: Prefixes, now: float, *, of_batch: bool = False
    ) -> tuple[Mapping[_Key, Read], int]:
        """Return how much of a conversation each replica has read, and how many bytes of it all replicas presumably have.

        All replicas have presumably read the prefixes that a service sends with all its chats, though only the last few readers
        are remembered. Of a batch, which may hold the prefixes of many services, that is presumed only where the list of
        readers is full.
        """
        chain: list[tuple[Prefix, tuple[tuple[_Key, float], ...]]] = []
        for prefix in prefixes.chain:
            readers = self._readers.get(prefix.digest)
            if readers is None:
                # A replica that has read more has also read this prefix.
                break
            chain.append((prefix, readers))
        reads: dict[_Key, Read] = {}
        last: _Key | None = None
        shared_bytes = 0
        for index in reversed(range(len(chain))):
            prefix, readers = chain[index]
            if index < prefixes.shared and not (of_batch and len(readers) < MAX_READERS):
                shared_bytes = max(shared_bytes, prefix.size)
                continue
            for key, read_at in readers:
                if key is not last and key not in reads:
                    reads[key] = Read(prefix.size, now - read_at)
                last = key
        return reads, shared_bytes


def _is_same_replica(reader: _Key, key: _Key) -> bool:
    # Nearly always one and the same object.
    return (reader[1] is key[1] or reader[1] == key[1]) and reader[0] == key[0]
