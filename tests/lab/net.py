"""Network of the lab: hosts in network namespaces, joined by one bridge, and the faults between them.

Every interface lives inside a namespace of ours, so this machine's own network is never touched. A keeper process undoes
everything once the lab's process is gone, however it ended; what is left even then is swept at the next start.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import permutations
from pathlib import Path
from typing import Self

from tests.lab.delay import Delay

PREFIX = "vinelab"
"""Every namespace of ours is called `vinelab-<our pid>-<host>`."""

NAMED = Path("/run/netns")
"""Where `ip netns` keeps them."""

_CORE = "core"
_CLONE_NEWNET = 0x40000000
_KEEPER_WITHIN = 30.0

_TOOLS = (("ip", "iproute2"), ("nft", "nftables"), ("iptables", "iptables"))
_QUEUED = ("-j", "NFQUEUE", "--queue-num", "0", "--queue-bypass")
"""For `Delay`. nftables does not have queues on every kernel, iptables does; packets pass where no process holds the queue."""

_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""Whether iptables sees what a bridge passes on."""

_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """A command of the lab failed; the text holds the command and its output."""


def missing() -> str:
    """Return in one line what this machine lacks to run the lab, or nothing."""
    if os.geteuid() != 0:
        return "root"
    absent = [f"{tool} (package {package})" for tool, package in _TOOLS if not shutil.which(tool)]
    if absent:
        return " and ".join(absent)
    try:
        with Network(hosts=1) as network:
            network.delay(1)
            return ""
    except (LabError, OSError) as error:
        return f"a kernel with network namespaces, br_netfilter and NFQUEUE: {error}"


class Network:
    """Hosts 1 to `hosts`, with the addresses 10.77.0.1 and so on, and faults that are switched while it stands."""

    def __init__(self, *, hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._owner = os.getpid()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._cut: set[tuple[int, int]] = set()
        self._lost = 0.0
        self._narrow: dict[tuple[int, int], int] = {}
        self._forgotten: list[str] = []
        self._delay = ExitStack()

    def __enter__(self) -> Self:
        sweep()
        # Started first, so that a half-built network is undone as well. Its standard input ends with this process.
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.net", str(self._owner)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._build()
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()

    def namespace(self, host: int | str) -> str:
        """Return the name of a host's namespace."""
        return f"{PREFIX}-{self._owner}-{host}"

    def address(self, host: int) -> str:
        """Return the address at which other hosts reach a host."""
        return f"10.77.0.{host}"

    def own_address(self, host: int) -> str:
        """Return an address that only processes on the host itself reach; its last number is the host's."""
        return f"127.77.0.{host}"

    def socket_to(self, address: str, family: int, kind: int, protocol: int) -> socket.socket:
        """Make a socket on the host that an address belongs to: a client asks each node from that node's machine."""
        return self.socket_on(int(address.rpartition(".")[2]), family, kind, protocol)

    def socket_on(self, host: int, family: int, kind: int, protocol: int) -> socket.socket:
        """Make a socket on a host. It stays there, whichever thread uses it."""
        with _visiting(self.namespace(host)):
            made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def partition(self, *groups: Iterable[int]) -> None:
        """Drop every packet between hosts of different groups, from now on."""
        sides = [set(group) for group in groups]
        for one, other in permutations(sides, 2):
            self._cut |= {(source, target) for source in one for target in other}
        self._apply()

    def isolate(self, host: int) -> None:
        """Drop every packet to and from a host."""
        self.partition({host}, set(self.hosts) - {host})

    def cut_one_way(self, source: int, target: int) -> None:
        """Drop what `source` sends to `target`; the other direction stays open."""
        self._cut.add((source, target))
        self._apply()

    def narrow(self, one: int, other: int, size: int) -> None:
        """Drop silently what two hosts send each other in packets of more than so many bytes: a black hole of the path's MTU."""
        self._narrow |= {(one, other): size, (other, one): size}
        for host in (one, other):
            # Else the kernel hands many packets over as one, whose size is that of them all.
            device = ("dev", "eth0", "gso_max_segs", "1")
            _run("ip", "-n", self.namespace(host), "link", "set", *device)
        self._apply()

    def forget_flows(self, host: int) -> None:
        """Drop silently what belongs to the TCP connections that a host has now, as a firewall does that was started anew."""
        flows = _run("ip", "netns", "exec", self.namespace(host), "ss", "-tnH").splitlines()
        for line in flows:
            ends = [end.rsplit(":", 1) for end in line.split()[3:5]]
            for (source, sport), (target, dport) in permutations(ends):
                self._forgotten.append(
                    f"ip saddr {source} tcp sport {sport} ip daddr {target} tcp dport {dport} drop"
                )
        self._apply()

    def lose(self, percent: float) -> None:
        """Drop this share of all packets, in each direction, at random."""
        self._lost = percent
        self._apply()

    def delay(self, ms: float, *, jitter: float = 0.0) -> None:
        """Delay every packet by so many milliseconds, in each direction, give or take `jitter`."""
        self._delay.close()
        if ms:
            core = self.namespace(_CORE)
            with _visiting(core):
                _BRIDGED.write_text("1")
            self._delay.enter_context(Delay(core, ms=ms, jitter=jitter))
            _run("ip", "netns", "exec", core, "iptables", "-A", "FORWARD", *_QUEUED)
            self._delay.callback(_run, "ip", "netns", "exec", core, "iptables", "-F", "FORWARD")

    def mend(self) -> None:
        """End partitions and cuts; links stay as slow and narrow as they are, and lose as much."""
        self._cut.clear()
        self._apply()

    def heal(self) -> None:
        """End partitions, cuts, loss and delay, and put every cable back."""
        self._cut.clear()
        self._narrow.clear()
        self._forgotten.clear()
        self._lost = 0.0
        self.delay(0)
        self._apply()
        for host in self.hosts:
            self.link(host, up=True)

    def link(self, host: int, *, up: bool) -> None:
        """Pull a host's cable, or put it back."""
        _run("ip", "-n", self.namespace(_CORE), "link", "set", f"h{host}", "up" if up else "down")

    def take_address(self, host: int) -> None:
        """Take a host's address away, as before its network is configured."""
        _run("ip", "-n", self.namespace(host), "address", "flush", "dev", "eth0")

    def give_address(self, host: int) -> None:
        """Give a host its address back."""
        namespace = self.namespace(host)
        _run("ip", "-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "eth0")

    def move(self, host: int) -> str:
        """Give a host another address, as when its lease ends, and return it; nobody answers at its old one."""
        address = f"10.77.0.{100 + host}"
        self.take_address(host)
        namespace = self.namespace(host)
        _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        return address

    def _build(self) -> None:
        core = self.namespace(_CORE)
        _run("ip", "netns", "add", core)
        _run("ip", "-n", core, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", core, "link", "set", "bridge", "up")
        for host in self.hosts:
            namespace = self.namespace(host)
            _run("ip", "netns", "add", namespace)
            ends = (
                "eth0",
                "netns",
                namespace,
                "type",
                "veth",
                "peer",
                "name",
                f"h{host}",
                "netns",
                core,
            )
            _run("ip", "link", "add", *ends)
            _run("ip", "-n", core, "link", "set", f"h{host}", "master", "bridge", "up")
            self.give_address(host)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        self._apply()

    def _apply(self) -> None:
        """Replace all rules by the ones that hold now, in one transaction."""
        rules = [f'iifname "h{a}" oifname "h{b}" drop' for a, b in sorted(self._cut)]
        rules += [
            f'iifname "h{a}" oifname "h{b}" meta length > {size} drop'
            for (a, b), size in sorted(self._narrow.items())
        ]
        rules += self._forgotten
        if self._lost:
            # IPv4 alone: a lost ARP question would cost a second, which is not the loss that is meant.
            share = f"numgen random mod 100000 < {min(round(self._lost * 1000), 99_999)}"
            rules.append(f"ether type ip {share} drop")
        body = "\n".join(rules)
        table = "table bridge lab"
        chain = f"chain faults {{\ntype filter hook forward priority 0;\n{body}\n}}"
        script = f"{table}\ndelete {table}\n{table} {{\n{chain}\n}}\n"
        _run("ip", "netns", "exec", self.namespace(_CORE), "nft", "-f", "-", stdin=script)

    def _undo(self) -> None:
        self._delay.close()
        keeper = self._keeper
        if keeper is None or keeper.stdin is None:
            return
        keeper.stdin.close()
        keeper.wait(_KEEPER_WITHIN)
        self._keeper = None


def enter(namespace: str) -> None:
    """Move this thread, and those that it starts later, into a namespace."""
    with (NAMED / namespace).open("rb") as door:
        _set(door.fileno())


def sweep(owner: int | None = None) -> None:
    """End what runs in the namespaces of an owner, or of every owner that is gone, and delete them."""
    for name in _namespaces():
        made_by = int(name.split("-")[1])
        if made_by == owner or (owner is None and not _lives(made_by)):
            for process in _run("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _run("ip", "netns", "delete", name)


def _namespaces() -> list[str]:
    if not NAMED.is_dir():
        return []
    return sorted(path.name for path in NAMED.glob(f"{PREFIX}-*-*"))


def _lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@contextmanager
def _visiting(namespace: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open("rb") as home:
        enter(namespace)
        try:
            yield
        finally:
            _set(home.fileno())


def _set(descriptor: int) -> None:
    # os.setns came with Python 3.12.
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise LabError(f"setns: {os.strerror(number)}")


def _run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        output = " ".join((done.stderr or done.stdout).split())
        raise LabError(f"{' '.join(command)}: {output}")
    return done.stdout


def _keep(owner: int) -> None:
    """Wait until the process that started this one is gone, then undo what it made."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(owner)


if __name__ == "__main__":
    _keep(int(sys.argv[1]))
