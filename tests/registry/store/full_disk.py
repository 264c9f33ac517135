"""Program that fills the disk under a SQLite store, then makes room again: a limit on file sizes stands in for the disk."""

import asyncio
import resource
import signal
import sys
from pathlib import Path

from registry.errors import StoreUnavailable
from registry.store import Put, Space
from registry.store.sqlite import SqliteStore


async def main(path: Path) -> None:
    store = SqliteStore(path)
    await store.write(Put(Space.SELF, "epoch", b"1"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    refused = 0
    for number in range(3):
        try:
            await store.write(
                Put(Space.SELF, "epoch", b"9"), Put(Space.RECORDS, f"{number}", b"v" * 400_000)
            )
        except StoreUnavailable:
            refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    stored = dict(await store.read(Space.SELF))
    await store.write(Put(Space.RECORDS, "later", b"v" * 400_000))
    records = sorted(await store.read(Space.RECORDS))
    sys.stdout.write(f"{refused} {stored['epoch'].decode()} {records}\n")
    await store.close()


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    asyncio.run(main(Path(sys.argv[1])))
