"""Discovery by multicast DNS, as libp2p does it, on asyncio.

Answers are untrusted: they are parsed here, bounded, and yield no more than addresses to try. A node speaks only on the
interfaces at whose addresses it can be reached, so a node that listens on loopback is not heard on the network.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Protocol

from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, NonUniqueNameException, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from registry.mesh.discovered import MAX_ADDRESS_CHARACTERS, MAX_CLAIMED, MAX_STRANGERS
from registry.task_group import BackgroundTasks

log = logging.getLogger("modelvine.mesh")

MAX_TEXT_BYTES = 4096
"""The longest text record of another node that is read; a longer one is ignored."""

MAX_QUESTIONS = 8
"""Queries for a text record in flight at one time; further nodes wait until they announce themselves again."""

AGAIN = 30.0
"""Seconds between checks whether our addresses changed or the network came back."""

GATHER = 0.2
"""Seconds for which announcements are gathered before they are reported."""

_QUESTION_MILLISECONDS = 3_000
_STOP_SECONDS = 3.0
_KEY = b"dnsaddr="


def service_of(swarm_key: str | None) -> str:
    """Return the name under which nodes of one mesh meet: libp2p's own, or one that only holders of a swarm key know.

    The mark in the name is a short one-way hash: it tells two private meshes apart and reveals nothing of the key.
    """
    if swarm_key is None:
        return "_p2p._udp.local."
    mark = sha256(b"modelvine/1/mdns\0" + bytes.fromhex(swarm_key)).hexdigest()[:10]
    return f"_p2p-{mark}._udp.local."


def text_of(addresses: Iterable[str]) -> bytes:
    """Return the text record that lists these addresses, at most `MAX_CLAIMED` of them."""
    lines = [_KEY + address.encode() for address in addresses]
    fitting = [line for line in lines if len(line) <= 255][:MAX_CLAIMED]
    return b"".join(bytes([len(line)]) + line for line in fitting)


def addresses_in(text: bytes) -> tuple[str, ...]:
    """Return the addresses that a text record lists, unchecked; what is malformed is left out."""
    return tuple(_addresses(text)) if len(text) <= MAX_TEXT_BYTES else ()


def hosts_in(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the IP addresses at which these multiaddrs listen, each once."""
    parts = [address.split("/") for address in addresses]
    return tuple(dict.fromkeys(p[2] for p in parts if len(p) > 2 and p[1] in ("ip4", "ip6")))


def _addresses(text: bytes) -> Iterator[str]:
    offset = count = 0
    while offset < len(text) and count < MAX_CLAIMED:
        line = text[offset + 1 : offset + 1 + text[offset]]
        offset += 1 + text[offset]
        address = line[len(_KEY) :]
        if line[: len(_KEY)].lower() == _KEY and address.isascii():
            count += 1
            yield address[:MAX_ADDRESS_CHARACTERS].decode("ascii")


class MulticastNode(Protocol):
    """A node that announces itself by multicast, and looks for others."""

    def multicast_addresses(self) -> tuple[str, ...]:
        """Return the addresses to announce; none while it cannot be reached."""

    def take_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses of all nodes that were found."""


class MulticastDns:
    """Announces this node on the networks that it listens on, and reports the nodes there. Belongs to one event loop."""

    def __init__(self, service: str, node: MulticastNode) -> None:
        self._service = service
        self._node = node
        # A random name, as in libp2p: the peer id is in the text record.
        self._name = f"{secrets.token_hex(16)}.{service}"
        self._addresses_by_name: dict[str, tuple[str, ...]] = {}
        self._report_timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()

    async def run(self) -> None:
        """Announce and listen until cancelled, anew whenever our addresses change."""
        complained = False
        while True:
            addresses = self._node.multicast_addresses()
            try:
                if addresses:
                    await self._meet(addresses)
            except (OSError, ZeroconfError, NonUniqueNameException, TimeoutError) as error:
                log.log(
                    logging.DEBUG if complained else logging.WARNING,
                    "cannot find nodes of this network by multicast: %s",
                    error or type(error).__name__,
                )
                complained = True
            else:
                complained = False
            await asyncio.sleep(AGAIN)

    async def _meet(self, addresses: tuple[str, ...]) -> None:
        hosts = hosts_in(addresses)
        zeroconf = AsyncZeroconf(interfaces=list(hosts), ip_version=_version(hosts))
        browser: AsyncServiceBrowser | None = None
        try:
            await (await zeroconf.async_register_service(self._announcement(addresses, hosts)))
            browser = AsyncServiceBrowser(
                zeroconf.zeroconf, self._service, handlers=[self._on_service_change]
            )
            log.info("looking for nodes by multicast on %s", ", ".join(hosts))
            # Polled: the library does not report when a machine gets another address.
            while self._node.multicast_addresses() == addresses:  # noqa: ASYNC110
                await asyncio.sleep(AGAIN)
        finally:
            await self._leave(zeroconf, browser)

    async def _leave(self, zeroconf: AsyncZeroconf, browser: AsyncServiceBrowser | None) -> None:
        await self._tasks.cancel_all()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if browser is not None:
                    await browser.async_cancel()
                await zeroconf.async_close()  # says goodbye first
        except (OSError, ZeroconfError, TimeoutError) as error:
            log.debug("multicast did not end properly: %s", error)
        self._addresses_by_name.clear()
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None

    def _announcement(self, addresses: tuple[str, ...], hosts: tuple[str, ...]) -> AsyncServiceInfo:
        port = int(addresses[0].split("/")[4])
        return AsyncServiceInfo(
            self._service,
            self._name,
            port=port,
            properties=text_of(addresses),
            server=f"{self._name.partition('.')[0]}.local.",
            parsed_addresses=list(hosts),
        )

    def _on_service_change(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if name == self._name:
            return
        if state_change is ServiceStateChange.Removed:
            if self._addresses_by_name.pop(name, None):
                self._schedule_report()
            return
        info = AsyncServiceInfo(service_type, name)
        # A port and an address are irrelevant: libp2p needs the text alone.
        info.load_from_cache(zeroconf)
        if info.text:
            self._note(info)
        elif len(self._tasks) < MAX_QUESTIONS:
            self._tasks.spawn(self._ask(zeroconf, info))

    async def _ask(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        await info.async_request(zeroconf, _QUESTION_MILLISECONDS)
        self._note(info)

    def _note(self, info: AsyncServiceInfo) -> None:
        addresses = addresses_in(info.text or b"")
        if not addresses or self._addresses_by_name.get(info.name) == addresses:
            return
        if (
            len(self._addresses_by_name) >= MAX_STRANGERS
            and info.name not in self._addresses_by_name
        ):
            # A random one is evicted: if newcomers were refused, the first to flood would keep all others out.
            del self._addresses_by_name[secrets.choice(list(self._addresses_by_name))]
        self._addresses_by_name[info.name] = addresses
        self._schedule_report()

    def _schedule_report(self) -> None:
        # A flood of announcements causes one call, not one for each.
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(GATHER, self._report_now)

    def _report_now(self) -> None:
        self._report_timer = None
        self._node.take_neighbours(
            tuple(address for every in self._addresses_by_name.values() for address in every)
        )


def _version(hosts: tuple[str, ...]) -> IPVersion:
    versions = {":" in host for host in hosts}
    if versions == {True}:
        return IPVersion.V6Only
    return IPVersion.All if True in versions else IPVersion.V4Only
