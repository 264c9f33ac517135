"""Checks of settings beyond single fields: forms, and constraints over several fields.

Each complaint completes the sentence "SETTING is VALUE: it ...", and says what would be valid.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from node.auth.usage_row import parse_price
from node.config.addresses import check_announce, check_dial, check_listen, host_port
from node.config.settings import Settings
from registry.errors import InvalidSignature
from registry.signing import public_of
from registry.store import names
from registry.wire import MAX_NODE_NAME_CHARACTERS, is_node_name
from router import policies
from router.ssrf_guard import networks_of

_STORE_FORMS = (
    "must be memory, sqlite, sqlite:PATH, redis://HOST:PORT/N, rediss://…, unix://SOCKET "
    "or postgresql://HOST:PORT/DATABASE"
)
_QUERY_PASSWORD = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_ORIGIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._-]+(?::[0-9]{1,5})?|[a-z]+://\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
)
_NOT_URL = re.compile(r"[^\x21-\x7e]")
_URLS = {"node.store", "node.traces"}
_POSTGRESQL = {"postgresql", "postgres"}
_STORE_SPELLINGS = {"rediss", "unix", "postgresql"}


def find_invalid(settings: Settings, origins: Mapping[str, str]) -> Mapping[str, str]:
    """Return every setting that cannot be used, with what would be valid; empty if all are valid."""
    problems = dict.fromkeys(_infinite_settings(settings), "must be a finite number")
    for key, check in _CHECKS.items():
        try:
            check(settings)
        except ValueError as error:
            problems[key] = str(error)
    if origins["node.store"].startswith("--") and _password(settings.node.store):
        problems["node.store"] = (
            "holds a password, and other users can read command lines: "
            "put it into MODELVINE_STORE or the settings file"
        )
    return problems


def mask_password(key: str, value: object) -> object:
    """Return a setting's value as it may be shown, with the passwords in URLs of stores and collectors masked."""
    if key not in _URLS or not isinstance(value, str):
        return value
    # redis-py and libpq take a password in the query as well.
    masked = _QUERY_PASSWORD.sub(r"\1***", value)
    head, separator, location = masked.rpartition("@")
    if not separator:
        return masked
    scheme, slashes, credentials = head.partition("://")
    user, colon, _ = credentials.partition(":")
    # What stands alone may be a secret, except for PostgreSQL, whose passwords may be in ~/.pgpass.
    if not colon and scheme in _POSTGRESQL:
        return masked
    return f"{scheme}{slashes}{user}:***@{location}"


def displayed_settings(settings: Settings) -> Mapping[str, str]:
    """Return all settings by `section.name`, with passwords masked."""
    return {
        f"{section}.{name}": str(mask_password(f"{section}.{name}", value))
        for section, values in settings.model_dump(mode="json").items()
        for name, value in values.items()
    }


def _check_issuers(settings: Settings) -> None:
    _check_peers(settings.node.trusted_issuers)


def _check_prices(settings: Settings) -> None:
    for price in settings.node.prices:
        parse_price(price)


def _check_name(settings: Settings) -> None:
    if settings.node.name and not is_node_name(settings.node.name):
        raise ValueError(
            f"must have 1 to {MAX_NODE_NAME_CHARACTERS} printable characters and no blanks, and not begin as a peer id does"
        )


def _check_http(settings: Settings) -> None:
    address = host_port(settings.node.http)
    if not address.is_loopback and not settings.node.is_open_set:
        raise ValueError(
            "can be reached by other machines: set who needs no key, with --open nobody, --open machine "
            f"or --open everybody, or listen on 127.0.0.1:{address.port}"
        )


def _check_localai(settings: Settings) -> None:
    _check_rpc(settings.faces.localai, settings.faces.localai_keys, settings)


def _check_remotellm(settings: Settings) -> None:
    _check_rpc(settings.faces.remotellm, settings.faces.remotellm_keys, settings)


def _check_rpc(text: str, keys: str, settings: Settings) -> None:
    if not text:
        return
    address = host_port(text)
    if not (address.is_loopback or keys or settings.node.is_open_set):
        raise ValueError(
            "can be reached by other machines: set who needs no key, with --open nobody, --open machine "
            f"or --open everybody, set a file of keys, or listen on 127.0.0.1:{address.port}"
        )


def _check_localai_keys(settings: Settings) -> None:
    _check_keys(settings.faces.localai_keys)


def _check_remotellm_keys(settings: Settings) -> None:
    _check_keys(settings.faces.remotellm_keys)


def _check_keys(file: str) -> None:
    if file and not Path(file).is_file():
        raise ValueError("names no file: create it with a key on each line, and `chmod 600` it")


def _check_link(settings: Settings) -> None:
    if settings.node.link:
        host_port(settings.node.link)


def _check_store(settings: Settings) -> None:
    scheme, colon, rest = settings.node.store.partition(":")
    remote = scheme not in names() or scheme in {"redis", "postgres"}
    is_known = scheme in names() | _STORE_SPELLINGS
    if not is_known or (remote and not rest.startswith("//")) or (colon and not rest):
        raise ValueError(_STORE_FORMS)
    # A PostgreSQL URL may name several hosts, which urlsplit cannot read.
    if remote and "," not in rest:
        try:
            _ = urlsplit(settings.node.store).port
        except ValueError as error:
            raise ValueError(f"{_STORE_FORMS}; the port is a number up to 65535") from error


def _check_traces(settings: Settings) -> None:
    traces = settings.node.traces
    if not traces:
        return
    form = "must be a URL like http://127.0.0.1:4318/v1/traces"
    try:
        url = urlsplit(traces)
        _ = url.port
    except ValueError as error:
        raise ValueError(form) from error
    if url.scheme not in {"http", "https"} or not url.hostname or _NOT_URL.search(traces):
        raise ValueError(form)
    if "@" in url.netloc or url.query or url.fragment:
        raise ValueError(
            f"{form}, without a password or a query: let a collector of your own add keys"
        )


def _check_swarm_key(settings: Settings) -> None:
    if settings.node.swarm_key and not Path(settings.node.swarm_key).is_file():
        raise ValueError("names no file: create it with `modelvine key swarm FILE`")


def _check_tls(settings: Settings) -> None:
    files = settings.node.tls_cert, settings.node.tls_key
    if any(files) and not all(files):
        raise ValueError("needs both: --tls-cert FILE and --tls-key FILE")
    for file in files:
        if file and not Path(file).is_file():
            raise ValueError(f"needs a file, and {file} is none")


def _check_listen(settings: Settings) -> None:
    if not settings.mesh.listen:
        raise ValueError("must hold at least one address, like /ip4/127.0.0.1/tcp/6101")
    for address in settings.mesh.listen:
        check_listen(address)


def _check_announce(settings: Settings) -> None:
    for address in settings.mesh.announce:
        check_announce(address)


def _check_bootstrap(settings: Settings) -> None:
    for address in settings.mesh.bootstrap:
        check_dial(address)


def _check_rendezvous(settings: Settings) -> None:
    for address in settings.mesh.rendezvous:
        check_dial(address)


def _check_lease(settings: Settings) -> None:
    least = 2 * settings.registry.heartbeat
    if settings.registry.lease < least:
        raise ValueError(
            f"must be at least twice registry.heartbeat, so {least:g} or more: "
            "one lost heartbeat must not end a node"
        )


def _check_suspicion(settings: Settings) -> None:
    least = 2 * settings.registry.probe_timeout
    if settings.registry.suspicion < least:
        raise ValueError(
            f"must be at least twice registry.probe_timeout, so {least:g} or more: "
            "a doubted node needs time to answer a probe"
        )


def _check_allow(settings: Settings) -> None:
    _check_peers(settings.registry.allow)


def _check_deny(settings: Settings) -> None:
    _check_peers(settings.registry.deny)


def _check_peers(peers: tuple[str, ...]) -> None:
    for peer in peers:
        try:
            public_of(peer)
        except InvalidSignature as error:
            raise ValueError(f"must list peer ids: {error}") from error


def _check_names(settings: Settings) -> None:
    if not all(name == "*" or _HOST_NAME.fullmatch(name) for name in settings.web.names):
        raise ValueError(
            "must list host names, like vine.example, without scheme and port, or * for any"
        )


def _check_origins(settings: Settings) -> None:
    if not all(origin == "*" or _ORIGIN.fullmatch(origin) for origin in settings.web.origins):
        raise ValueError(
            "must list origins, like https://chat.example or http://localhost:3000, without a path, or * for all"
        )


def _check_trusted_proxies(settings: Settings) -> None:
    try:
        proxies = networks_of(settings.web.trusted_proxies)
    except ValueError as error:
        raise ValueError(
            f"must list addresses and networks, like 192.0.2.7 or 10.0.0.0/24: {error}"
        ) from error
    if not all(network.prefixlen for network in proxies):
        raise ValueError("must not include all addresses: any caller could claim any address")


def _check_proxy_protocol(settings: Settings) -> None:
    if settings.web.proxy_protocol and not settings.web.trusted_proxies:
        raise ValueError(
            "needs web.trusted_proxies: only these may name the client of a connection"
        )


def _check_bodies(settings: Settings) -> None:
    if settings.web.max_bodies_bytes < settings.router.max_body_bytes:
        raise ValueError(
            f"must be at least router.max_body_bytes, {settings.router.max_body_bytes}: otherwise bodies of that size never fit"
        )


def _check_policy(settings: Settings) -> None:
    if settings.router.policy not in policies.NAMES:
        raise ValueError(f"must be one of {', '.join(policies.NAMES)}")


def _check_worker_networks(settings: Settings) -> None:
    try:
        networks_of(settings.router.worker_networks)
    except ValueError as error:
        raise ValueError(
            f"must list networks, like 192.0.2.0/28 or 192.0.2.7/32: {error}"
        ) from error


def _infinite_settings(settings: Settings) -> Iterator[str]:
    for section, entries in settings.model_dump().items():
        for name, value in entries.items():
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{section}.{name}"


def _password(store: str) -> bool:
    return store != mask_password("node.store", store)


_CHECKS: Mapping[str, Callable[[Settings], None]] = {
    "node.name": _check_name,
    "node.http": _check_http,
    "node.link": _check_link,
    "node.store": _check_store,
    "node.traces": _check_traces,
    "node.swarm_key": _check_swarm_key,
    "node.tls_cert": _check_tls,
    "node.trusted_issuers": _check_issuers,
    "node.prices": _check_prices,
    "web.names": _check_names,
    "web.origins": _check_origins,
    "web.trusted_proxies": _check_trusted_proxies,
    "web.proxy_protocol": _check_proxy_protocol,
    "web.max_bodies_bytes": _check_bodies,
    "faces.localai": _check_localai,
    "faces.localai_keys": _check_localai_keys,
    "faces.remotellm": _check_remotellm,
    "faces.remotellm_keys": _check_remotellm_keys,
    "mesh.listen": _check_listen,
    "mesh.announce": _check_announce,
    "mesh.bootstrap": _check_bootstrap,
    "mesh.rendezvous": _check_rendezvous,
    "registry.lease": _check_lease,
    "registry.suspicion": _check_suspicion,
    "registry.allow": _check_allow,
    "registry.deny": _check_deny,
    "router.policy": _check_policy,
    "router.worker_networks": _check_worker_networks,
}
