"""Checks of the machine that a node runs on, or should run on: settings, files, disk, ports, clock, certificate, keys.

No I/O: values in, findings out. `node.diagnosis.facts` gathers the values.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.compiled import SLOWER
from node.diagnosis import Finding, fail, fail_from_error, ok, warn
from node.listeners import PLENTY, connections_within

_GB, _MB = 1_000_000_000, 1_000_000

LITTLE_DISK, NO_DISK = 1 * _GB, 50 * _MB
"""Free bytes on the disk of the data directory: below the first it will soon be full, below the second it is."""

FEW_CONNECTIONS = 64
"""Connections to a listener; with fewer a node is of no use."""

FULL = 0.8
"""Share of the allowed open files; above it the rest will soon be used up."""

SOON = 14 * 86_400.0
"""Seconds before a certificate's expiry, within which it should be renewed."""

_DATA = "set another with --data-dir DIR"


@dataclass(frozen=True, slots=True)
class Directory:
    """The data directory. `owner` and `user` are uids; `free` is in bytes, `None` if unknown."""

    path: str
    exists: bool = True
    is_directory: bool = True
    readable: bool = True
    writable: bool = True
    owner: int = 0
    user: int = 0
    mode: int = 0o700
    free: int | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """One address to listen at. `problem` says why that fails, and the remedy; `holder` is the process that listens there."""

    setting: str
    place: str
    problem: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's view of its clock: whether it is synchronised, and its maximum error in seconds."""

    synchronised: bool | None
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The certificate of the HTTP face; times are Unix times. `problem` says why it cannot be used."""

    path: str
    begins: float = 0.0
    ends: float = 0.0
    names: Sequence[str] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class UnresponsiveNode:
    """Facts of a node that does not answer. `lock` is the pid that holds the data directory, `left` the one in `node.json`."""

    said: str
    lock: int | None = None
    left: int | None = None
    left_lives: bool = False


def program(version: str, python: str, *, compiled: bool) -> Finding:
    """Report the program's version and build; uncompiled it works as well, but takes more CPU time."""
    return ok(
        "program", f"modelvine {version} on Python {python}, {'compiled' if compiled else SLOWER}"
    )


def settings(complaints: Sequence[str]) -> list[Finding]:
    """Report which settings are invalid, and where they come from."""
    if not complaints:
        return [ok("settings", "all valid")]
    found = []
    for line in complaints:
        what, _, advice = line.partition(": it ")
        do = f"it {advice}" if advice else "`modelvine config show` lists the settings"
        found.append(fail("settings", what, do))
    return found


def report_absence(facts: UnresponsiveNode) -> Finding:
    """Report that no node answers, and the likely reason."""
    if facts.lock is not None:
        return fail(
            "node",
            f"process {facts.lock} has the data directory, but no node answers: {facts.said}",
            "it may be starting or hanging: check its log, then restart it",
        )
    if facts.left is not None and not facts.left_lives:
        return fail(
            "node",
            f"not running: process {facts.left} ended unexpectedly (killed, out of memory, power failure)",
            "check its last log lines (journalctl -u modelvine), then start it: modelvine up",
        )
    return fail(
        "node", f"not running here: {facts.said}", "start it: modelvine up (or name it with --node)"
    )


def data_dir(facts: Directory) -> list[Finding]:
    """Check the permissions of the data directory, and the free space on its disk."""
    path = facts.path
    if not facts.exists:
        if facts.writable:
            return [ok("data", f"{path} is created when the node starts")]
        return [fail("data", f"{path} does not exist, and this user cannot create it", _DATA)]
    if not facts.is_directory:
        return [fail("data", f"the data directory {path} is a file", _DATA)]
    if not (facts.readable and facts.writable):
        return [fail("data", _unusable(facts), f"run as user {facts.owner}, or {_DATA}")]
    if facts.owner != facts.user:
        finding = warn(
            "data",
            f"{path} belongs to user {facts.owner}, and this is user {facts.user}",
            "run modelvine as that user, or the node cannot use the files that it creates",
        )
    elif facts.mode & 0o022:
        finding = warn(
            "data", f"other users can write to {path} (mode {facts.mode:o})", f"chmod 700 {path}"
        )
    else:
        finding = ok("data", f"{path} belongs to this user")
    return [finding, *_disk(facts)]


def _unusable(facts: Directory) -> str:
    cannot = "write to" if facts.readable else "read"
    whose = f", which belongs to user {facts.owner}" if facts.owner != facts.user else ""
    return f"user {facts.user} cannot {cannot} {facts.path}{whose} (mode {facts.mode:o}, or a read-only disk)"


def _disk(facts: Directory) -> Iterator[Finding]:
    if facts.free is None:
        return
    free = f"{facts.free / _GB:,.1f} GB" if facts.free >= _GB else f"{facts.free / _MB:,.0f} MB"
    do = f"free space on the disk of {facts.path}, which stores registrations, keys and usage"
    if facts.free < NO_DISK:
        yield fail("disk", f"full: {free} free", do)
    elif facts.free < LITTLE_DISK:
        yield warn("disk", f"nearly full: {free} free", do)
    else:
        yield ok("disk", f"{free} free")


def secret(check: str, problem: str, *, success: str) -> Finding:
    """Check a file that holds a secret: `problem` is what is wrong with it, `success` the text if nothing is."""
    if not problem:
        return ok(check, success)
    return fail_from_error(check, problem, "check its permissions and its content")


def open_files(limit: int, *, wanted: int, used: int = 0) -> Finding:
    """Check how many connections fit into the allowed open files."""
    do = "raise the limit: LimitNOFILE of the service, ulimit -n, --ulimit of the container"
    available = connections_within(limit)
    text = f"{available:,} connections to each listener, by the limit of {limit:,}"
    if used > FULL * limit:
        return fail("open files", f"{used:,} of {limit:,} are in use", do)
    if available < FEW_CONNECTIONS:
        return fail("open files", f"only {text}", do)
    if available < min(wanted, PLENTY):
        return warn("open files", f"only {text}; web.connections is {wanted:,}", do)
    return ok("open files", f"{text}{f'; {used:,} are in use' if used else ''}")


def ports(facts: Iterable[Port]) -> list[Finding]:
    """Check that a node can listen on its ports."""
    found = []
    for port in facts:
        check = f"port {port.place.rpartition(':')[2]}"
        if not port.problem:
            found.append(ok(check, f"{port.place} is free ({port.setting})"))
            continue
        reason, _, advice = port.problem.partition("; ")
        holder = f"; {port.holder} listens there" if port.holder else ""
        found.append(fail(check, f"{reason}{holder}", advice or f"check {port.setting}"))
    return found


def clock(kernel: KernelClock) -> Finding:
    """Check the clock by the kernel's view, where no other node reports its time."""
    if kernel.synchronised is None:
        return ok("clock", "unknown: neither the kernel nor another node reports the time")
    if not kernel.synchronised:
        return warn(
            "clock",
            "the kernel reports that it is not synchronised; keys and certificates expire by it",
            "run chrony or systemd-timesyncd (in a container: on its host)",
        )
    return ok("clock", f"synchronised, within {max(kernel.error, 0.001):.3f} s")


def tls(facts: TlsFacts, *, now: float, hosts: Sequence[str]) -> Finding:
    """Check the certificate of the HTTP face: whether it is usable, its expiry, and whether it covers the names `hosts`."""
    if facts.problem:
        return fail_from_error(
            "tls", facts.problem, "pass a certificate and its key with --tls-cert and --tls-key"
        )
    renew = f"replace {facts.path}: the node loads it without a restart"
    if now >= facts.ends:
        days = (now - facts.ends) / 86_400
        return fail("tls", f"the certificate {facts.path} expired {days:.0f} days ago", renew)
    if now < facts.begins:
        return fail(
            "tls",
            f"the certificate {facts.path} is not valid yet",
            "check this machine's clock, or wait",
        )
    days = (facts.ends - now) / 86_400
    if facts.ends - now < SOON:
        return warn("tls", f"the certificate {facts.path} expires in {days:.0f} days", renew)
    names = ", ".join(facts.names[:5]) or "no name"
    if hosts and not any(_covers(name, host) for name in facts.names for host in hosts):
        return warn(
            "tls",
            f"the certificate {facts.path} is for {names}, none of which is a name of this node ({', '.join(hosts[:5])})",
            "get one for the name that callers use, or add its name to web.names",
        )
    return ok("tls", f"the certificate for {names} is valid for another {days:.0f} days")


def _covers(name: str, host: str) -> bool:
    name, host = name.lower(), host.lower().rstrip(".")
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return name == host


def exposure(warning: str) -> Finding:
    """Check what can be used without a key: `warning` comes from `node.exposure`, empty if nothing can."""
    if not warning:
        return ok("access", "other machines need a key")
    what, _, advice = warning.partition("; ")
    return warn("access", what, advice or "see `modelvine up --help`, --open")


def bootstrap_dials(dials: Iterable[tuple[str, str]]) -> list[Finding]:
    """Check the addresses to join by TCP alone, each given with the reason of its failure, empty if it accepts."""
    return [
        fail("join", f"{address} does not answer: {reason}", dial_advice(reason))
        if reason
        else ok("join", f"{address} accepts connections")
        for address, reason in dials
    ]


_ADVICE = (
    ("own address", "name another node's address: this node cannot join itself"),
    (
        "peer id",
        _OTHER_ID
        := "use the address that `modelvine status` shows there (p2p); it ends with that node's id",
    ),
    ("names another", _OTHER_ID),
    (
        "does not answer as a node",
        "use the same file at both nodes (--swarm-key FILE), or check what listens at that port",
    ),
    (
        "refused",
        "start that node, or correct the address (`modelvine status` there shows it: p2p)",
    ),
    (
        "timed out",
        _NO_WAY := "check firewalls, the address, and that the machine is on",
    ),
    ("unreachable", _NO_WAY),
    ("no route", _NO_WAY),
    ("name", "correct the name or its DNS entry"),
)


def dial_advice(reason: str) -> str:
    """Return the remedy for an address that does not answer, by the reason."""
    text = reason.lower()
    usual = "wait a few seconds, then check that the node runs and accepts TCP connections"
    return next((advice for fragment, advice in _ADVICE if fragment in text), usual)


def store(kind: str, error: str, *, seconds: float = 0.0) -> Finding:
    """Check the store of registrations and keys: `error` is its failure, `seconds` the time of one write and one read."""
    if error:
        do = (
            "start it, or correct node.store (--store); meanwhile a running node serves, but saves nothing"
            if kind == "redis"
            else "check free space and the file's owner, or set another store with node.store (--store)"
        )
        what, _, advice = error.partition(": ")
        own_words = any(
            fragment in advice for fragment in ("upgrade this one", "stop the node", "choose ")
        )
        return fail("store", what, advice) if own_words else fail("store", error, do)
    if seconds > 1.0:
        return warn(
            "store",
            f"{kind} is slow: a write and a read took {seconds:.1f} s",
            "check the load of its disk or server",
        )
    took = f": a write and a read took {1000 * seconds:.1f} ms" if seconds else ""
    return ok("store", f"{kind} works{took}")
