"""Checks of a running node: its reports on itself, its workers, its store and its neighbours.

No I/O: answers of its interface in, findings out. Names in them come from other machines; the code that prints them cleans them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from node.diagnosis import Finding, Severity, fail, machine, ok, warn
from registry.clock import duration
from registry.mesh.discovered import only_loopback

_Row = Mapping[str, Any]

CLOCK_WARN, CLOCK_FAIL = 5.0, 60.0
"""Seconds between two machines' clocks: above these limits logs are hard to compare, and keys expire at other times."""

LAG = 0.5
"""Lag of the event loop, in seconds, from which callers notice it."""

CPU_SHARE = 0.5
"""Share of that lag that is the loop's own CPU time; with less, the machine was busy with something else."""

_MB = 1_000_000
_GONE = frozenset({"lost", "left"})
_OPEN = "open"


def findings(
    status: _Row, nodes: Sequence[_Row], examined: _Row, metrics: Mapping[str, float]
) -> list[Finding]:
    """Return the findings from a node's answers; `examined` is empty if the caller has no rights to the examination."""
    found = [
        *parts(status),
        *bootstrap(status),
        check_reachability(status, nodes),
        *neighbours(nodes, examined.get("peers", ())),
        *versions(status, nodes, examined.get("process", {})),
        *process(status, metrics),
    ]
    if not examined:
        do = "run this as the node's user, or set MODELVINE_KEY to an operator's key"
        return [*found, warn("node", "workers, store and clocks were not checked", do)]
    own_process, store_row = examined["process"], examined["store"]
    return [
        *found,
        *workers(examined["workers"]),
        machine.store(store_row["kind"], store_row["error"], seconds=store_row["seconds"]),
        *clocks(examined["peers"]),
        machine.open_files(
            own_process["open_files_limit"],
            wanted=own_process["connections"],
            used=own_process["open_files"],
        ),
        *relay(examined["relay"]),
    ]


def parts(status: _Row) -> Iterator[Finding]:
    """Report the parts of a node that it reports as not working; store and addresses to join have their own checks."""
    name = status["name"] or status["peer"]
    ready = status["ready"]
    if "draining" in ready["http"]:
        yield warn(
            "node", f"{name} is draining: its models take no new requests", "modelvine undrain"
        )
    else:
        yield ok("node", f"{name} serves at {status['http']}")
    if ready["mesh"] != "ok":
        do = "check the log (modelvine logs --level warning); if it persists, restart the node"
        yield fail("mesh", ready["mesh"], do)
    if "identity" in ready:
        do = "stop the other node, or give it its own identity.key (another --data-dir)"
        yield fail("identity", ready["identity"], do)


def bootstrap(status: _Row) -> list[Finding]:
    """Check the addresses to join by the node's own dials."""
    rows = status["bootstrap"]["addresses"]
    alone = status["ready"].get("bootstrap", "ok") != "ok"
    found = []
    for row in rows:
        if row["answers"]:
            found.append(ok("join", f"{row['address']} answers"))
            continue
        reason = row["why"] or "no answer yet"
        # With other nodes connected, it only means one address less.
        make = fail if alone else warn
        found.append(
            make(
                "join",
                f"{row['address']} does not answer: {reason}",
                machine.dial_advice(row["why"]),
            )
        )
    return found


def check_reachability(status: _Row, nodes: Sequence[_Row]) -> Finding:
    """Check whether other nodes can dial this one."""
    addresses = status["p2p"]
    others = [row for row in nodes if not row["self"] and row["state"] not in _GONE]
    inbound = sum(row["origin"] == "inbound" and row["connection"] == "direct" for row in others)
    if any("/p2p-circuit" in address for address in addresses):
        return warn(
            "reach",
            "other nodes cannot dial this one: they use a relay",
            "open the ports of mesh.listen and --link, or advertise reachable addresses with --announce",
        )
    if inbound:
        return ok("reach", f"{inbound} of {len(others)} other nodes dialled this one")
    if not addresses:
        return fail("reach", "this node has no address that others can dial", "see `mesh` above")
    if only_loopback(addresses):
        return _check_loopback(status, others)
    return ok("reach", f"others can dial {addresses[0]}; none has yet")


def _check_loopback(status: _Row, others: Sequence[_Row]) -> Finding:
    if "//0.0.0.0:" in status["link"]:
        return warn(
            "reach",
            "this machine has no IPv4 address, so other nodes cannot dial this one",
            "if its network has IPv6 only, start it with --listen /ip6/::/tcp/6101",
        )
    elsewhere = [r for r in status["bootstrap"]["addresses"] if not only_loopback([r["address"]])]  # fmt: skip
    if elsewhere or any(not only_loopback(row["addresses"]) for row in others):
        return warn(
            "reach",
            "this node listens only on this machine, but other nodes are elsewhere",
            "start it with --profile lan, or set an address with --listen",
        )
    return ok("reach", "it listens only on this machine (profile local)")


def handshakes(failed: int) -> list[Finding]:
    """Report that other programs failed to connect. Only their own doctor can name the cause."""
    if not failed:
        return []
    do = "run `modelvine doctor` there: nodes of one mesh need the same --swarm-key, or none"
    return [warn("handshakes", f"{failed} incoming connections failed in the handshake", do)]


def neighbours(nodes: Sequence[_Row], peers: Sequence[_Row]) -> Iterator[Finding]:
    """Check the routes to other nodes: those that were queried just now, and the believed state of the rest."""
    examined = {row["node"] for row in peers}
    well = 0
    for row in peers:
        name = row["name"] or row["node"]
        if not row["answers"]:
            do = "check that its link port (`modelvine status` there: link) and libp2p port are reachable from here"
            yield fail("peers", f"{name} does not answer requests: {row['why']}", do)
        elif row["route"] == "relay":
            do = "open its HTTPS port (--link sets it) or its libp2p port to this machine"
            yield warn("peers", f"requests to {name} go through a relay or a libp2p stream", do)
        else:
            well += 1
    for row in nodes:
        if row["node"] not in examined and row["state"] in ("unreachable", "suspect"):
            name = row.get("name") or row["node"]
            do = "check the network between the two machines; others may reach it"
            yield warn("peers", f"{name} is {row['state']}: {row['why']}", do)
    if well:
        yield ok("peers", f"{well} other node{'' if well == 1 else 's'} answered directly")
    if all(row["self"] for row in nodes):
        yield ok("peers", "no other node is known; this node serves its own models")


def clocks(peers: Sequence[_Row]) -> list[Finding]:
    """Compare clocks. With several other nodes, their median decides whether this machine's clock is off."""
    offsets = {
        row["name"] or row["node"]: row["clock"] for row in peers if row["clock"] is not None
    }
    if not offsets:
        return []
    middle = median(offsets.values())
    if len(offsets) > 1 and abs(middle) >= CLOCK_WARN:
        return [_off("this machine's clock", -middle, "all others'")]
    off = [
        _off(f"the clock of {name}", ahead, "this machine's")
        for name, ahead in offsets.items()
        if abs(ahead) >= CLOCK_WARN
    ]
    largest = max(map(abs, offsets.values()))
    reference = "another node's" if len(offsets) == 1 else f"those of {len(offsets)} other nodes"
    return off or [ok("clock", f"within {max(largest, 0.001):.3f} s of {reference}")]


def _off(whose: str, ahead: float, than: str) -> Finding:
    direction = "ahead of" if ahead > 0 else "behind"
    what = f"{whose} is {abs(ahead):.0f} s {direction} {than}"
    do = "run chrony or systemd-timesyncd there: keys and certificates expire by the clock"
    return (fail if abs(ahead) >= CLOCK_FAIL else warn)("clock", what, do)


def workers(rows: Sequence[_Row]) -> list[Finding]:
    """Check each worker: whether it answers, speaks its registered protocol, and its capacity."""
    if not rows:
        return [ok("workers", "none is registered here")]
    found = [*map(_worker, rows)]
    bad = [finding for finding in found if finding.state is not Severity.OK]
    if bad:
        return bad
    return [ok("workers", f"all {len(rows)} answer" if len(rows) > 1 else found[0].what)]


def _worker(row: _Row) -> Finding:
    cid = f" ({row['cid']})" if row["cid"] else ""
    name = f"{row['project']}/{row['model']}{cid}"
    withdraw = f"modelvine unregister {row['project']} {row['model']}"
    if not row["answers"]:
        details = [*([] if row["health"] == "ok" else [row["health"]]), *row["tries"][:1]]
        reasons = f" ({'; '.join(details)})" if details else ""
        do = f"start it, or withdraw it: {withdraw}"
        return fail("workers", f"{name}: no answer from {row['api']}{reasons}", do)
    if row["speaks"] and row["speaks"] != row["dialect"]:
        what = f"{name}: {row['api']} speaks {row['speaks']}, but is registered as {row['dialect']}"
        do = f"register it again with --dialect {row['speaks']}, or use `modelvine attach`, which detects it"
        return fail("workers", what, do)
    if row["health"].startswith("silent"):
        do = "check the worker's log; if it hangs, restart it"
        return fail("workers", f"{name}: {row['health']}", do)
    if row["circuit"] == _OPEN:
        what = f"{name}: its circuit is open after {row['failures']} failures in a row, for another {row['retry_in']:.1f} s"
        do = "find the reason in the log: modelvine logs --level warning"
        return fail("workers", what, do)
    return _answering(row, name)


def _answering(row: _Row, name: str) -> Finding:
    """Check a worker without a known failure."""
    if row["loads"]:
        what = f"{name}: it is not ready ({row['tries'][-1]})"
        return warn("workers", what, "wait until it is, or check the worker's log")
    if not row["speaks"] and row["tries"] and not row["in_flight"]:
        what = f"{name}: {row['api']} does not answer as {row['dialect']} ({row['tries'][0]})"
        do = "check the URL, and whether it needs a key (--header 'authorization: Bearer …')"
        return warn("workers", what, do)
    slots = f"{row['slots']} slots" if row["slots"] else "unknown capacity"
    learned = ", learned" if row["slots"] and row["learned"] else ""
    return ok("workers", f"{name} answers as {row['dialect']} ({slots}{learned})")


def check_installed_version(status: _Row, command: str) -> list[Finding]:
    """Compare the version of a node with that of the command: on one machine they are installed together."""
    if status["version"] == command:
        return []
    what = f"modelvine {command} is installed, but the running node is {status['version']}"
    do = "restart it: modelvine drain --wait, then systemctl restart modelvine"
    return [warn("versions", what, do)]


def versions(status: _Row, nodes: Sequence[_Row], own_process: _Row) -> Iterator[Finding]:
    """Compare the versions of all nodes that are alive."""
    own_agent = f"modelvine/{status['version']}"
    by_agent: dict[str, list[str]] = {}
    for row in nodes:
        if not row["self"] and row["state"] not in _GONE and row["agent"] != own_agent:
            by_agent.setdefault(row["agent"] or "no version", []).append(row["name"] or row["node"])
    for agent, names in by_agent.items():
        more = ", …" if names[5:] else ""
        what = f"this node is {own_agent}, {', '.join(names[:5])}{more} {agent}"
        do = "upgrade all nodes to one version, one at a time (docs/operations.md, Upgrade)"
        yield warn("versions", what, do)
    if not by_agent:
        made_of = [f"{what} {own_process[what]}" for what in ("python", "libp2p") if own_process]
        loop = [own_process["loop"]] if own_process else []
        yield ok("versions", ", ".join((f"every node is {own_agent}", *made_of, *loop)))


def process(status: _Row, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Check the process: its uptime, its memory, and the lag of its event loop."""
    memory = metrics.get("process_resident_memory_bytes", 0.0) / _MB
    lag, busy = metrics.get("modelvine_loop_lag_seconds", 0.0), metrics.get("modelvine_loop_busy_seconds", 0.0)  # fmt: skip
    up = duration(status["uptime"])
    yield ok("process", f"up for {up}, {memory:,.0f} MB, {status['in_flight']} in flight")
    if lag >= LAG:
        is_own_work = busy >= CPU_SHARE * lag
        yield warn(
            "load",
            f"its event loop lagged by {lag:.1f} s in the last minute, "
            + ("because of its own work" if is_own_work else "because it got too little CPU"),
            "run several processes: --workers N"
            if is_own_work
            else "check the machine's load (top), or the container's limits",
        )


def relay(row: _Row) -> Iterator[Finding]:
    """Report the use of this node as a relay."""
    if not row["serves"]:
        return
    reservations, refused = row.get("reservations", 0), row.get("refused", 0)
    if refused:
        do = "run another relay, or raise mesh.relay_…"
        yield warn(
            "relay", f"{refused} requests of other nodes were refused, because it is full", do
        )
    else:
        yield ok("relay", f"it relays for others: {reservations} reservations")


def log(errors: Sequence[_Row]) -> Iterable[Finding]:
    """Report errors in the log."""
    if errors:
        last = errors[-1]
        yield warn(
            "log",
            f"{len(errors)} recent errors, the last: {last['logger']}  {last['message'][:200]}",
            "modelvine logs --level error",
        )
