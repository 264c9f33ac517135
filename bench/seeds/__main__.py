"""Runner of seeds, which reports those that break an invariant. The same seed always gives the same run.

python -m bench.seeds --seed 17          one seed, with its plan and its last events
python -m bench.seeds --count 1000       seeds 0 to 999, as many at a time as there are processors
"""

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.seeds.checks import Checks
from bench.seeds.plan import plan_of
from bench.seeds.world import SeedWorld


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a seed."""

    seed: int
    digest: str
    """The hash of all events."""
    events: int
    asked: int
    failed: int
    broken: tuple[str, ...]
    last: tuple[str, ...]
    """The last events."""


def run(seed: int) -> Result:
    """Run one seed."""
    with tempfile.TemporaryDirectory() as folder:
        world = SeedWorld(plan_of(seed), Path(folder))
        checks = Checks(world)
        try:
            world.run()
            broken = tuple(checks.at_end())
        finally:
            world.close()
    trace = world.trace
    failed = sum(bool(request.error) for request in world.asked)
    last = tuple(trace.last)
    return Result(seed, trace.digest, trace.events, len(world.asked), failed, broken, last)


def _told(result: Result) -> str:
    """Return all that a person needs to find the cause of a seed's failure."""
    lines = [str(plan_of(result.seed)), "last events:", *(f"  {line}" for line in result.last)]
    lines += [f"BROKEN: {line}" for line in result.broken]
    again = f"python -m bench.seeds --seed {result.seed}"
    return "\n".join([*lines, f"again: {again}  ({result.events} events, {result.digest})"])


def main(arguments: list[str] | None = None) -> int:
    """Run the requested seeds; return the number of seeds that broke something, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m bench.seeds", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone, and tell all of it")
    parser.add_argument("--first", type=int, default=0, help="the first of many")
    parser.add_argument("--count", type=int, default=1000, help="how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", action="store_true", help="show what the nodes log")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.DEBUG if options.log else logging.CRITICAL, stream=sys.stderr)
    if options.seed is not None:
        result = run(options.seed)
        print(_told(result))
        return len(result.broken) > 0
    return _many(range(options.first, options.first + options.count), options.processes)


def _many(seeds: range, processes: int) -> int:
    began, broken = time.monotonic(), 0
    with ProcessPoolExecutor(processes) as pool:
        for done, result in enumerate(pool.map(run, seeds), 1):
            if result.broken:
                broken += 1
                print(_told(result), flush=True)
            if done % 50 == 0 or done == len(seeds):
                seconds = time.monotonic() - began
                print(f"{done} of {len(seeds)} seeds, {broken} broken, {seconds:.0f} s", flush=True)
    return min(broken, 100)


if __name__ == "__main__":
    # The order of sets of strings must be the same in each run.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "bench.seeds", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    gc.freeze()
    sys.exit(main())
