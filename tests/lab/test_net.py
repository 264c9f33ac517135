"""Does the lab do what it says? A cut cuts in the direction it names, and nothing is left when its owner is killed."""

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.net import NAMED, PREFIX, Network, sweep
from tests.swarm.waiting import show, until

pytestmark = pytest.mark.lab


def _hears(network: Network, source: int, target: int) -> bool:
    """Whether a datagram from one host reaches another."""
    address = (network.address(target), 7777)
    with (
        network.socket_on(target, socket.AF_INET, socket.SOCK_DGRAM, 0) as receiver,
        network.socket_on(source, socket.AF_INET, socket.SOCK_DGRAM, 0) as here,
    ):
        receiver.bind(address)
        receiver.settimeout(0.4)
        here.sendto(b"?", address)
        try:
            return receiver.recv(1) == b"?"
        except TimeoutError:
            return False


def test_faults_cut_what_they_name_and_healing_ends_them(network: Network) -> None:
    assert _hears(network, 1, 2)
    network.cut_one_way(1, 2)
    assert (_hears(network, 1, 2), _hears(network, 2, 1)) == (False, True)
    network.heal()
    network.partition({1, 2}, {3, 4, 5})
    assert (_hears(network, 1, 2), _hears(network, 3, 5)) == (True, True)
    assert (_hears(network, 2, 3), _hears(network, 4, 1)) == (False, False)
    network.heal()
    network.isolate(4)
    assert (_hears(network, 4, 5), _hears(network, 5, 6)) == (False, True)
    network.heal()
    network.link(5, up=False)
    assert not _hears(network, 1, 5)
    network.lose(100)
    network.link(5, up=True)
    assert not _hears(network, 1, 3)
    network.heal()
    assert _hears(network, 1, 3)
    assert _hears(network, 1, 5)


def _travels(network: Network, source: int, target: int) -> float:
    """Return how long a datagram from one host is on its way to another."""
    address = (network.address(target), 7777)
    with (
        network.socket_on(target, socket.AF_INET, socket.SOCK_DGRAM, 0) as receiver,
        network.socket_on(source, socket.AF_INET, socket.SOCK_DGRAM, 0) as here,
    ):
        receiver.bind(address)
        receiver.settimeout(2)
        began = time.monotonic()
        here.sendto(b"?", address)
        receiver.recv(1)
        return time.monotonic() - began


def test_packets_are_delayed_for_as_long_as_configured(network: Network) -> None:
    at_once = min(_travels(network, 1, 2) for _ in range(10))
    network.delay(50, jitter=10)
    slow = [_travels(network, source, 2) for source in (1, 3, 4) for _ in range(10)]
    network.delay(150)
    slower = min(_travels(network, 2, 1) for _ in range(5))
    network.heal()
    again = min(_travels(network, 1, 2) for _ in range(10))
    show("delay of 50 ± 10 ms", at_once=at_once, least=min(slow), most=max(slow), after=again)
    # Any single packet may be late by chance; none may be early.
    assert max(at_once, again) < 0.02
    assert 0.039 < min(slow) < 0.05 < max(slow)
    assert statistics.median(slow) < 0.1
    assert 0.149 < slower < 0.2


@pytest.fixture
def another_run(possible: None) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the lab by another pytest: five nodes on slow links."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/lab/test_links.py", "-k", "visible"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        yield run
        run.kill()


async def test_nothing_is_left_of_a_run_that_is_killed(
    another_run: subprocess.Popen[bytes],
) -> None:
    interfaces = _interfaces()
    hosts = [f"{PREFIX}-{another_run.pid}-{host}" for host in ("core", *range(1, 6))]
    inside: set[int] = set()

    def at_work() -> bool:
        pids = [_inside(host) for host in hosts]
        inside.update(*pids)
        return all(pids)

    # A node runs on each host, and on the bridge's the process that delays packets.
    await until(at_work, within=60, otherwise="the other run does not run")
    another_run.kill()

    def undone() -> bool:
        left = list(NAMED.glob(f"{PREFIX}-{another_run.pid}-*"))
        return not left and not any(map(_runs, inside))

    took = await until(undone, within=15, otherwise="something is left")
    show("run killed", processes=str(len(inside)), undone_after=took)
    assert _interfaces() == interfaces


def _inside(namespace: str) -> set[int]:
    """Return the processes in a namespace; none where there is no such namespace."""
    command = ["ip", "netns", "pids", namespace]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return set(map(int, result.stdout.split()))


def _interfaces() -> set[str]:
    """Return the network interfaces of this machine itself."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_namespaces_left_behind_by_an_owner_that_is_gone_are_swept(possible: None) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(10)
    name = f"{PREFIX}-{ended.pid}-1"
    subprocess.run(["ip", "netns", "add", name], check=True)
    sweep()
    assert not (NAMED / name).exists()
