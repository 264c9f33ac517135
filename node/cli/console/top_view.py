"""View of `modelvine top`: requests, nodes and models by two samples of a node, as lines that fit a terminal.

No I/O. Rates are computed from the counts between the two samples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.cli.console.text import cut, plain, table_lines
from registry.clock import duration

_Row = Mapping[str, Any]

CALLER_LEFT = "499"
"""Status under which a node counts requests whose caller disconnected: these are not failures."""

_SHORT_ID = 14
_FEWEST_ROWS = 3


@dataclass(frozen=True, slots=True)
class TopCounters:
    """Counters of a node since its start."""

    requests: Mapping[str, float] = field(default_factory=dict)
    """Requests by HTTP status."""
    read: float = 0.0
    written: float = 0.0
    """Tokens that its workers wrote; `read` are those that they read."""
    lag: float = 0.0
    """Greatest lag of its event loop in the last minute, in seconds."""


@dataclass(frozen=True, slots=True)
class TopLook:
    """Sample of a node at one moment; `at` is seconds on any clock."""

    at: float
    status: _Row
    nodes: Sequence[_Row]
    catalog: Sequence[_Row]
    counters: TopCounters
    expected: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Expected seconds of a request at each replica of a model, by PROJECT/MODEL."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Events a second."""

    requests: float
    failed: float
    refused: float
    left: float
    read: float
    written: float


def counters_in(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> TopCounters:
    """Sum up the samples of a node's metrics, given as names, labels and values."""
    requests: dict[str, float] = {}
    tokens = {"prompt": 0.0, "completion": 0.0}
    lag = 0.0
    for name, labels, value in samples:
        if name == "modelvine_requests_total":
            requests[labels["status"]] = requests.get(labels["status"], 0.0) + value
        elif name == "modelvine_tokens_total" and labels["part"] in tokens:
            tokens[labels["part"]] += value
        elif name == "modelvine_loop_lag_seconds":
            lag = value
    return TopCounters(requests, tokens["prompt"], tokens["completion"], lag)


def rates(before: TopLook, snapshot: TopLook) -> Rates:
    """Return the rates between two samples; the counters of a node that restarted meanwhile begin at zero."""
    took = max(snapshot.at - before.at, 1e-9)
    old, new = before.counters, snapshot.counters
    anew = sum(new.requests.values()) < sum(old.requests.values())
    old = TopCounters() if anew else old

    def of(holds: Callable[[str], bool]) -> float:
        now = sum(count for status, count in new.requests.items() if holds(status))
        then = sum(count for status, count in old.requests.items() if holds(status))
        return max(0.0, now - then) / took

    return Rates(
        requests=of(bool),
        failed=of(lambda status: status >= "500"),
        refused=of(lambda status: "400" <= status < "500" and status != CALLER_LEFT),
        left=of(lambda status: status == CALLER_LEFT),
        read=max(0.0, new.read - old.read) / took,
        written=max(0.0, new.written - old.written) / took,
    )


def as_json(before: TopLook, snapshot: TopLook) -> dict[str, Any]:
    """Return the view as data for JSON."""
    per_second = rates(before, snapshot)
    return {
        "node": snapshot.status["name"],
        "peer": snapshot.status["peer"],
        "seconds": round(snapshot.at - before.at, 3),
        "requests": {
            "per_second": round(per_second.requests, 3),
            "failed_per_second": round(per_second.failed, 3),
            "refused_per_second": round(per_second.refused, 3),
            "left_per_second": round(per_second.left, 3),
            "in_flight": snapshot.status["in_flight"],
        },
        "tokens": {
            "read_per_second": round(per_second.read, 3),
            "written_per_second": round(per_second.written, 3),
        },
        "loop_lag": snapshot.counters.lag,
        "nodes": [
            {
                "node": row["node"],
                "name": row.get("name", ""),
                "state": row["state"],
                "standing": row["standing"],
                "round_trip": row["round_trip"],
                "connection": row["connection"],
                **_busy(row["load"]),
            }
            for row in _nodes(snapshot)
        ],
        "models": list(models(snapshot)),
    }


def frame(
    before: TopLook, snapshot: TopLook, *, columns: int, lines: int = 0, clock: str = ""
) -> list[str]:
    """Return the lines of one screen, cut to so many columns and lines; 0 for any number of lines."""
    heads = [cut(plain(line), columns) for line in _heads(before, snapshot, clock)]
    nodes = table_lines(
        ("NODE", "STATE", "MODELS", "IN FLIGHT", "QUEUED", "TOKENS/S", "ROUND TRIP", "ROUTE"),
        map(_node_row, _nodes(snapshot)),
        room=columns,
    )
    served = table_lines(
        ("MODEL", "REPLICAS", "IN FLIGHT", "QUEUED", "TOKENS/S", "EXPECTED", "HEALTH"),
        map(_model_row, models(snapshot)),
        room=columns,
    )
    if lines:
        height = lines - len(heads) - 2
        share = max(_FEWEST_ROWS, height // 2, height - len(served))
        nodes = _first(nodes, share)
        served = _first(served, max(_FEWEST_ROWS, height - len(nodes)))
    picture = [*heads, "", *nodes, "", *served]
    return picture[:lines] if lines else picture


def models(snapshot: TopLook) -> Iterable[dict[str, Any]]:
    """Yield a row for each model, the busiest first."""
    by_model: dict[tuple[str, str, int], list[_Row]] = {}
    for node in snapshot.catalog:
        for service in node["services"]:
            key = service["project"], service["model"], service["type"]
            by_model.setdefault(key, []).append(service)
    loads: dict[tuple[str, str, int], list[_Row]] = {}
    for node in snapshot.nodes:
        for row in node["load"]:
            loads.setdefault((row["project"], row["model"], row["type"]), []).append(row)
    rows = [
        {
            "model": f"{key[0]}/{key[1]}",
            "type": key[2],
            "replicas": len(services),
            **_busy(loads.get(key, ())),
            "expected": list(snapshot.expected.get(f"{key[0]}/{key[1]}", ())) if not key[2] else [],
            "health": list(dict.fromkeys(s["health"] for s in services if "health" in s)),
        }
        for key, services in by_model.items()
    ]
    return sorted(rows, key=lambda row: (-row["in_flight"], -row["queued"], row["model"]))


def _busy(load: Iterable[_Row]) -> dict[str, Any]:
    rows = list(load)
    slots = [row["slots"] for row in rows]
    return {
        "in_flight": sum(row["in_flight"] for row in rows),
        "queued": sum(row["queued"] for row in rows),
        # Known only if all replicas report them: a partial sum would mislead.
        "slots": sum(slots) if slots and all(slots) else None,
        "rate": round(sum(row["rate"] for row in rows), 1),
    }


def _heads(before: TopLook, snapshot: TopLook, clock: str) -> Iterable[str]:
    status, per_second = snapshot.status, rates(before, snapshot)
    unwell = [part for part, state in status["ready"].items() if state != "ok"]
    state = f"degraded ({', '.join(unwell)})" if unwell else "ok"
    alive, total = status["nodes_alive"], len(snapshot.nodes)
    name = status["name"] or status["peer"][:_SHORT_ID]
    yield (
        f"{name}  {state}  up {duration(status['uptime'])}  {alive} of {total} nodes alive"
        f"  {status['version']}  {clock}".rstrip()
    )
    yield (
        f"requests to this node: {per_second.requests:,.1f}/s, {status['in_flight']} in flight, "
        f"{per_second.failed:,.1f}/s failed, {per_second.refused:,.1f}/s refused"
    )
    processes = status["processes"]
    also = f", {processes} processes" if processes > 1 else ""
    yield (
        f"its workers' tokens: {per_second.read:,.0f}/s input, {per_second.written:,.0f}/s output; "
        f"event loop lag {duration(snapshot.counters.lag)}{also}"
    )


def _nodes(snapshot: TopLook) -> Sequence[_Row]:
    """Return the nodes, sorted by name, the queried one first."""
    return sorted(
        snapshot.nodes, key=lambda row: (not row["self"], row.get("name", ""), row["node"])
    )


def _node_row(row: _Row) -> Sequence[object]:
    busy = _busy(row["load"])
    standing = row["standing"]
    drains = standing != "serving" and standing != row["state"]
    return (
        row.get("name") or f"{row['node'][:_SHORT_ID]}…",
        f"{row['state']}, {standing}" if drains else row["state"],
        row["models"],
        _of(busy),
        busy["queued"] or "-",
        f"~{busy['rate']:.0f}" if busy["rate"] else "-",
        duration(row["round_trip"]) if row["round_trip"] else "-",
        row["connection"],
    )


def _model_row(row: _Row) -> Sequence[object]:
    return (
        row["model"],
        row["replicas"],
        _of(row),
        row["queued"] or "-",
        f"~{row['rate']:.0f}" if row["rate"] else "-",
        _expected(row["expected"]),
        "; ".join(row["health"]) or "-",
    )


def _of(busy: _Row) -> str:
    return f"{busy['in_flight']} of {busy['slots']}" if busy["slots"] else str(busy["in_flight"])


def _expected(each: Sequence[float]) -> str:
    if not each:
        return "-"
    soonest, latest = min(each), max(each)
    return f"{soonest:.2f} s" if len(each) == 1 else f"{soonest:.2f} to {latest:.2f} s"


def _first(table: Sequence[str], limit: int) -> list[str]:
    """Return at most so many lines of a table; if it is cut, the last line tells how many rows are left out."""
    if len(table) <= limit:
        return list(table)
    return [*table[: limit - 1], f"… {len(table) - limit + 1} more"]
