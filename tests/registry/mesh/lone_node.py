"""A node in a process of its own, for tests that kill it: `python -m tests.registry.mesh.lone_node NAME ADDRESS`."""

import asyncio
import sys

from registry.mesh.libp2p.mesh import LibP2PMesh
from tests.registry.mesh.worlds import echo, identity, return_everything, settings


async def live(name: str, *bootstrap: str) -> None:
    mesh = LibP2PMesh(identity(name), settings(bootstrap=bootstrap))
    await mesh.start(echo, return_everything)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(live(*sys.argv[1:]))
