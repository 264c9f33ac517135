"""Network with hidden hosts: some sit behind routers of their own that translate addresses and let no connection in.

A router keeps the source ports of packets where they are free, and lets in answers only: the NAT of most homes.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.lab.net import Network, _run, _visiting

INSIDE = "192.168.77.2"
"""The address of every hidden host: the same in every home, as it happens."""

_GATEWAY = "192.168.77.1"
_NOWHERE = "10.77.0.254"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_RULES = """
table ip lab {
    chain out {
        type nat hook postrouting priority 100;
        oifname "eth0" masquerade
    }
    chain through {
        type filter hook forward priority 0;
        iifname "eth0" ct state new drop
    }
    chain in {
        type filter hook input priority 0;
        iifname "eth0" ct state new drop
    }
}
"""


class NatNetwork(Network):
    """A network in which `address` of a hidden host is its router's. What goes to private addresses vanishes silently."""

    def __init__(self, *, hosts: int, hidden: Iterable[int]) -> None:
        super().__init__(hosts=hosts)
        self.hidden = frozenset(hidden)

    def _build(self) -> None:
        super()._build()
        for host in self.hosts:
            if host in self.hidden:
                self._hide(host)
            else:
                self._lead_nowhere(self.namespace(host))

    def _hide(self, host: int) -> None:
        """Give a host's place on the bridge to a router, and put the host behind it."""
        own, router = self.namespace(host), self.namespace(f"r{host}")
        _run("ip", "netns", "add", router)
        _run("ip", "-n", own, "link", "set", "eth0", "netns", router)
        _run("ip", "-n", router, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run("ip", "-n", router, "link", "set", "eth0", "up")
        self._lead_nowhere(router)
        ends = ("eth0", "netns", own, "type", "veth", "peer", "name", "lan", "netns", router)
        _run("ip", "link", "add", *ends)
        for namespace, address, device in ((own, INSIDE, "eth0"), (router, _GATEWAY, "lan")):
            _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", device)
            _run("ip", "-n", namespace, "link", "set", device, "up")
        _run("ip", "-n", own, "route", "add", "default", "via", _GATEWAY)
        with _visiting(router):
            _FORWARDING.write_text("1")
        _run("ip", "netns", "exec", router, "nft", "-f", "-", stdin=_RULES)

    def _lead_nowhere(self, namespace: str) -> None:
        # As on the Internet, a packet to an address that no host has gets no answer at all.
        to = ("lladdr", "02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent")
        _run("ip", "-n", namespace, "neighbor", "add", _NOWHERE, *to)
        _run("ip", "-n", namespace, "route", "add", "default", "via", _NOWHERE)
