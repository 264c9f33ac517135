"""Attacking process: it reads the name of one attack a line, and answers each with one line of JSON.

`python -m tests.swarm.attacks ADDRESS SEED`
"""

import json
import random
import sys
import time

import trio

from tests.swarm.attacks.kinds import KINDS
from tests.swarm.attacks.target import Target, attempt


async def main(address: str, seed: str) -> None:
    """Do what standard input says until it ends."""
    print(json.dumps([*KINDS]), flush=True)
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        name = line.strip()
        # A target of its own, so that an attack sends the same whatever was sent before.
        target = Target(address, random.Random(f"{seed} {name}"))
        began = time.monotonic()
        stopped = await attempt(KINDS[name], target)
        took = time.monotonic() - began
        print(json.dumps({"stopped": stopped, "seconds": took}), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
