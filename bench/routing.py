"""How much do callers wait because routers know little? The router's own policies against an oracle that knows everything.

    python -m bench.routing
    python -m bench.routing --load 0.9 --requests 20000
    python -m bench.routing --plot docs
    python -m bench.routing --fresh

Five nodes take requests for one model that eight machines serve, and see them as nodes do: their own requests in flight, what
other nodes say of themselves (`registry.members.load`), and the load in the head of each answer. The oracle joins the
shortest queue per slot, knowing all queues at that instant. Times are virtual; the same arguments give the same table.

With --fresh a ninth machine comes whose model has yet to be loaded, and the table shows what that costs those who ask just
then, with and without a gentle beginning (`router.state.slow_start`).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import charts
from bench.simulation.callers import JOINS, SCENES, WORK, World
from router import policies


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(scene: str, *, load: float, requests: int, seed: int) -> dict[str, list[float]]:
    """Run every policy and the oracle over the same arrivals."""
    found = {}
    for policy in ("oracle", *policies.NAMES):
        print(f"  {scene:8} {policy:12} at {load:.0%}", file=sys.stderr)
        found[policy] = World(scene, policy=policy, load=load, seed=seed).run(requests)
    return found


def as_table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lay out p50 and p99 of each policy, and its p99 against the oracle's."""
    rows = ["| | " + " | ".join(f"{s}: p50 / p99 s, ÷ oracle" for s in found) + " |"]
    rows.append("|---|" + "---|" * len(found))
    for policy in ("oracle", *policies.NAMES):
        cells = []
        for seconds in found.values():
            p99, best = percentile(seconds[policy], 0.99), percentile(seconds["oracle"], 0.99)
            cells.append(f"{percentile(seconds[policy], 0.5):.2f} / {p99:.2f}, {p99 / best:.2f}")
        rows.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def fresh(policy: str, *, load: float, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return how long those took who asked while a machine was new: with a gentle beginning, and without."""
    found: tuple[list[float], list[float]] = [], []
    for seed in seeds:
        for seconds, gentle in zip(found, (True, False), strict=True):
            world = World("alike", policy=policy, load=load, seed=seed, fresh=True, gentle=gentle)
            world.run(int(3 * JOINS * load * sum(m.slots for m in world.machines) / WORK))
            took = zip(world.when, world.seconds, strict=True)
            seconds += [s for when, s in took if JOINS <= when < 2 * JOINS]
    return sorted(found[0]), sorted(found[1])


def as_table_of_the_fresh(*, load: float, seed: int) -> str:
    """Lay out p50, p99 and the mean with and without a gentle beginning, over five runs."""
    rows = ["| | gentle: p50 / p99 / mean s | at once: p50 / p99 / mean s |", "|---|---|---|"]
    for policy in policies.NAMES:
        cells = [
            f"{percentile(s, 0.5):.2f} / {percentile(s, 0.99):.2f} / {sum(s) / len(s):.3f}"
            for s in fresh(policy, load=load, seeds=range(seed, seed + 5))
        ]
        rows.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def plot(folder: Path, *, requests: int, seed: int) -> None:
    """Draw by how much p99 is above the oracle's, over the load. Nobody here has workers of their own to stay at."""
    loads = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    above: dict[str, list[float]] = {n: [] for n in policies.NAMES if n != "local_first"}
    for load in loads:
        found = compare("unequal", load=load, requests=requests, seed=seed)
        best = percentile(found["oracle"], 0.99)
        for name, row in above.items():
            row.append(100 * (percentile(found[name], 0.99) / best - 1))
    title = "Slowest hundredth of answers, beside an oracle (machines of 2 to 16 slots)"
    charts.draw_lines(
        folder / "routing.svg",
        title,
        [100 * load for load in loads],
        above,
        across="load, % of all slots",
        up="99th percentile, % above the oracle's",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or draw the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", type=float, default=0.8, help="share of all slots that is busy")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--plot", type=charts.folder, metavar="FOLDER", help="write routing.svg there"
    )
    parser.add_argument("--fresh", action="store_true", help="have a new machine come instead")
    options = parser.parse_args(arguments)
    if options.fresh:
        print(as_table_of_the_fresh(load=options.load, seed=options.seed))
        return 0
    if options.plot:
        plot(options.plot, requests=options.requests, seed=options.seed)
        return 0
    found = {
        scene: compare(scene, load=options.load, requests=options.requests, seed=options.seed)
        for scene in SCENES
    }
    print(as_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
