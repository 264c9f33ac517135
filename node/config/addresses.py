"""Checks of addresses: HOST:PORT pairs and multiaddrs, by form only.

Nothing is resolved or dialled. Every refusal is a `ValueError` whose text completes the sentence "it ...".
"""

import ipaddress
import re
from dataclasses import dataclass

from registry.errors import InvalidSignature
from registry.signing import public_of

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_-]+)*\.?"
)
_NAMED = ("dns", "dns4", "dns6")
_LISTEN_FORM = "must look like /ip4/127.0.0.1/tcp/6101 (or /ip6/…; port 0 picks a free one)"
_DIAL_FORM = "must look like /ip4/192.0.2.7/tcp/6101/p2p/12D3KooW… (or /dns4/NAME/…)"
_ANNOUNCE_FORM = "must look like /ip4/203.0.113.7/tcp/6101 (or /dns4/NAME/…)"


@dataclass(frozen=True, slots=True)
class HostPort:
    """Address of a listener. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than `localhost` counts as reachable by other machines."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def host_port(text: str) -> HostPort:
    """Read `HOST:PORT` or `[IPV6]:PORT`; raise `ValueError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        good = _is_ip(host, 6)
    else:
        good = _is_ip(host, 4) or (_HOST_NAME.fullmatch(host) is not None and not _is_number(host))
    if not (colon and good and _is_port(port)):
        raise ValueError("must be HOST:PORT, like 127.0.0.1:6100 or [::1]:6100")
    return HostPort(host, int(port))


def check_listen(text: str) -> None:
    """Accept `/ip4|ip6/ADDRESS/tcp/PORT`; raise `ValueError` for anything else."""
    parts = _parts(text, _LISTEN_FORM)
    if len(parts) != 4 or parts[0] in _NAMED:
        raise ValueError(_LISTEN_FORM)
    _check_tcp(parts, _LISTEN_FORM)


def check_dial(text: str) -> None:
    """Accept an address to dial: IP or name, TCP port, and the expected peer id; raise `ValueError` for anything else."""
    parts = _parts(text, _DIAL_FORM)
    if len(parts) != 6:
        raise ValueError(_DIAL_FORM)
    _check_tcp(parts, _DIAL_FORM)
    _check_peer(parts[4:], _DIAL_FORM)


def check_announce(text: str) -> None:
    """Accept an address to advertise: IP or name and TCP port, with or without a peer id; raise `ValueError` for others."""
    parts = _parts(text, _ANNOUNCE_FORM)
    if len(parts) not in (4, 6):
        raise ValueError(_ANNOUNCE_FORM)
    _check_tcp(parts, _ANNOUNCE_FORM)
    if len(parts) == 6:
        _check_peer(parts[4:], _ANNOUNCE_FORM)


def _parts(text: str, form: str) -> list[str]:
    if not text.startswith("/") or len(text) > 512:
        raise ValueError(form)
    return text[1:].split("/")


def _check_tcp(parts: list[str], form: str) -> None:
    kind, host, transport, port = parts[:4]
    good = {
        "ip4": _is_ip(host, 4),
        "ip6": _is_ip(host, 6),
        **dict.fromkeys(_NAMED, _HOST_NAME.fullmatch(host) is not None),
    }
    if transport != "tcp" or not good.get(kind, False) or not _is_port(port):
        raise ValueError(form)


def _check_peer(parts: list[str], form: str) -> None:
    try:
        public_of(parts[1])
    except InvalidSignature as error:
        raise ValueError(f"{form}; {error}") from error
    if parts[0] != "p2p":
        raise ValueError(form)


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


def _is_number(host: str) -> bool:
    """Return whether a host is a mistyped IPv4 address, not a name: no top-level domain is a number."""
    return host.rpartition(".")[2].isdigit()


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535
