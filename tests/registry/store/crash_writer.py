"""Program that writes batch after batch into the named SQLite file, and prints each number once it is durable."""

import asyncio
import sys
from pathlib import Path

from registry.store import Delete, Put, Space
from registry.store.sqlite import SqliteStore

KEYS = [f"key-{number}" for number in range(8)]


async def main(path: Path) -> None:
    store = SqliteStore(path, timeout=10)
    stored = await store.read(Space.SELF)
    number = int(stored.get(KEYS[0], b"0"))
    while True:
        number += 1
        value = b"%d" % number + b" " * 5_000
        # Each batch also adds a marker and removes the one before: a half batch would leave two, or none.
        await store.write(
            Delete(Space.WORKERS, f"marker-{number - 1}"),
            *(Put(Space.SELF, key, value) for key in KEYS),
            Put(Space.WORKERS, f"marker-{number}", b""),
        )
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
