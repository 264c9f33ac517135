"""Simulation of the mesh at 100, 1,000, 10,000 nodes: the registry's own core under a virtual clock.

    python -m bench.simulate --nodes 100 --seed 1
    python -m bench.simulate --nodes 1000 --scenario idle --scenario killed --json
    python -m bench.simulate --nodes 100 --heartbeat 30 --lease 120 --loss 0.02 --delay 100
    python -m bench.simulate --nodes 10000 --scenario idle --scenario visible
    python -m bench.simulate --sweep 25,50,100,300,1000 --plot docs

The same arguments give the same table. Times are virtual; the CPU time of the run is reported on stderr. Up to 300 nodes
all carry a whole replica; of more, `--full` do, and the others only publish and forward frames.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from bench import charts
from bench.simulation.overlay import Weather
from bench.simulation.population import each_frame_verified_once
from bench.simulation.scenarios import SCENARIOS, Figure
from bench.simulation.world import Plan
from registry.settings import MeshSettings, RegistrySettings

# Left out above 2,000 nodes, so that a run takes ten minutes on one core.
_HEAVY = {"split90", "deaths", "drops", "churn", "split"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested scenarios, and print their figures."""
    options = _parser().parse_args(arguments)
    if options.sweep:
        return _sweep(options)
    figures = run(plan_of(options, options.nodes), _chosen(options))
    print(as_json(options.nodes, figures) if options.json else as_table(options.nodes, figures))
    return 0


def run(plan: Plan, names: Iterable[str]) -> list[Figure]:
    """Run scenarios, each in a fresh world; progress goes to stderr."""
    figures: list[Figure] = []
    with each_frame_verified_once():
        for name in names:
            begun = time.process_time()
            results = SCENARIOS[name](plan)
            cpu_seconds = time.process_time() - begun
            print(f"  {name:10} {plan.nodes:6,} nodes {cpu_seconds:8.1f} s of CPU", file=sys.stderr)
            figures += results
    return figures


def as_table(nodes: int, figures: Sequence[Figure]) -> str:
    """Return figures as a Markdown table."""
    rows = [f"| {nodes:,} nodes | | | |", "|---|---|---:|---|"]
    rows += [f"| {f.scenario} | {f.what} | {_number(f.value)} {f.unit} | {f.of} |" for f in figures]
    return "\n".join(rows)


def as_json(nodes: int, figures: Sequence[Figure]) -> str:
    """Return figures as JSON, one object each; the value of what never happened is null."""
    return json.dumps(
        [
            {
                "nodes": nodes,
                "scenario": f.scenario,
                "what": f.what,
                "value": round(f.value, 4) if abs(f.value) < float("inf") else None,
                "unit": f.unit,
                "of": f.of,
            }
            for f in figures
        ],
        indent=1,
    )


def plan_of(options: argparse.Namespace, nodes: int) -> Plan:
    """Return the plan for a command line."""
    overrides = {
        name: value
        for name in ("heartbeat", "lease", "probe", "suspicion", "sync", "reannounce")
        if (value := vars(options)[name]) is not None
    }
    settings = RegistrySettings(
        max_nodes=min(20_000, max(10_000, nodes * 4 // 3 + 100)), **overrides
    )
    full = options.full or _default_full(nodes)
    return Plan(
        nodes=nodes,
        full=min(nodes, full),
        seed=options.seed,
        weather=Weather(delay=options.delay / 1000, loss=options.loss, drop=options.drop),
        settings=settings,
        mesh=MeshSettings(degree=options.degree),
        bootstraps=options.bootstraps,
    )


def _default_full(nodes: int) -> int:
    if nodes <= 300:
        return nodes
    return 200 if nodes <= 2_000 else 64


def _chosen(options: argparse.Namespace) -> list[str]:
    if options.scenario:
        return list(dict.fromkeys(options.scenario))
    light = options.nodes <= 2_000
    return [name for name in SCENARIOS if light or name not in _HEAVY]


def _sweep(options: argparse.Namespace) -> int:
    sizes = [int(size) for size in options.sweep.split(",")]
    rows, sent = [], []
    everything: list[Figure] = []
    for nodes in sizes:
        figures = run(plan_of(options, nodes), ("idle", "visible"))
        everything += [
            replace(figure, scenario=f"{nodes:,}: {figure.scenario}") for figure in figures
        ]
        rows.append({f.what.rpartition(" ")[2]: f.value for f in figures if f.unit == "s"})
        sent.append({f.what: f.value for f in figures if f.unit == "B/s"})
    print(as_table(max(sizes), everything))
    if options.plot:
        _draw(options.plot, sizes, rows, sent)
    return 0


def _draw(
    folder: Path, sizes: list[int], rows: list[dict[str, float]], sent: list[dict[str, float]]
) -> None:
    charts.draw_lines(
        folder / "scale-visible.svg",
        "Time until a node sees a registration",
        sizes,
        {name: [row[name] for row in rows] for name in ("p50", "p99", "max")},
        across="nodes",
        up="seconds",
    )
    names = {
        "sent: everything": "everything",
        "sent: frames, questions and answers": "frames, questions, answers",
        "sent: heartbeats": "heartbeats",
        "sent: records": "records",
        "sent: probes and comparisons": "probes and comparisons",
    }
    charts.draw_lines(
        folder / "scale-bytes.svg",
        "What an idle node sends",
        sizes,
        {label: [row[name] for row in sent] for name, label in names.items()},
        across="nodes",
        up="bytes per second and node",
    )


def _number(value: float) -> str:
    if value in (float("inf"), float("-inf")) or value != value:  # noqa: PLR0124 (not a number)
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--nodes", type=int, default=100, help="how many nodes (100)")
    add("--full", type=int, help="how many of them carry a whole replica (all of up to 300)")
    add("--seed", type=int, default=1, help="chance begins here (1)")
    add("--scenario", action="append", choices=[*SCENARIOS], help="what to ask; may be repeated")
    add("--delay", type=float, default=50.0, help="mean delay of a connection one way, ms (50)")
    add("--loss", type=float, default=0.0, help="share of packets that TCP sends again (0)")
    add("--drop", type=float, default=0.0, help="share of messages that never come, each hop (0)")
    add("--degree", type=int, default=8, help="connections that a node tries to hold (8)")
    add("--bootstraps", type=int, default=3, help="nodes that everybody keeps dialling (3)")
    for name in ("heartbeat", "lease", "probe", "suspicion", "sync", "reannounce"):
        add(f"--{name}", type=float, help=f"seconds, instead of registry.{name}")
    add("--sweep", metavar="N,N,…", help="ask idle and visible at several sizes")
    add("--plot", type=charts.folder, metavar="FOLDER", help="draw the sweep there, as SVG")
    add("--json", action="store_true", help="figures as JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
