"""Store in Redis, which the nodes of one site share: frames in one Redis hash, and each node's own spaces beside it.

Every round trip is bounded and tried once: a node serves on without its store. Values are opaque here, so of two
nodes that write one peer's frame the later write stays. Readers merge, so at worst an older frame stays there until
its owner writes again. The site's Redis sees what a node stores about its own workers: give it a password, or TLS.
"""

import asyncio
import errno
import math
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import (
    MAX_VALUE_BYTES,
    MAX_VALUES,
    OF_THE_SITE,
    Change,
    Count,
    Put,
    Space,
    Store,
    check_limits,
    within_limits,
)

T = TypeVar("T")

_SLICE = 256
"""Values read at a time: at most 128 MiB in transit, and far less with real frames."""

_USAGE = (
    "use redis://HOST:PORT/N, rediss://HOST:PORT/N or unix://SOCKET?db=N, with [USER]:PASSWORD@ before the host "
    "where the server asks for it; special characters in a password percent-encoded; the only options are db and ssl_…"
)

_REASONS: Mapping[type[RedisError], str] = {
    AuthenticationError: "wrong user or password",
    AuthenticationWrongNumberOfArgsError: "this version has no users: leave the user out of the URL",
    BusyLoadingError: "the server is loading its data",
    InvalidResponse: "it is not a Redis server, or it requires TLS (rediss://)",
    NoPermissionError: "this user may not do that: allow it all commands on the keys modelvine:*",
    OutOfMemoryError: "the server's memory is full (maxmemory)",
    ReadOnlyError: "the server takes no writes: name the primary, not a replica",
}
_CODES = {"MISCONF": "the server cannot save to its disk: see its log"}

# Error replies begin with a word in capitals: OOM, READONLY, MISCONF, NOPERM.
_CODE = re.compile(r"[A-Z]{3,20}\b")


# A value that is not a number was not written by this program, and counts as 0.
_COUNT = """
local time = redis.call('TIME')
local now, told = time[1] + time[2] / 1000000, {}
for i = 1, #KEYS do
  local due, amount, ttl = ARGV[3 * i - 2] == '1', tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local held = tonumber(redis.call('GET', KEYS[i]) or '') or 0
  local stands = (due and math.max(held, now) or held) + amount
  if due then ttl = math.min(math.max(ttl, math.ceil((stands - now) * 1000)), 1e12) end
  if amount ~= 0 then redis.call('SET', KEYS[i], string.format('%.6f', stands), 'PX', string.format('%.0f', ttl)) end
  told[i] = string.format('%.6f', due and math.max(stands - now, 0) or stands)
end
return told
"""


class RedisStore:
    """Keeps values in a Redis server: some spaces for the whole site, others for `node` alone."""

    shared = True

    def __init__(
        self, url: str, *, node: PeerId, prefix: str = "modelvine", timeout: float = 1.0
    ) -> None:
        self._node = node
        self._prefix = prefix
        self._timeout = timeout
        self._address = _check(url)
        self._closed = False
        self._redis = _connect(url, timeout)
        # One round trip at a time, so that writes arrive in the order they were made.
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisStore({self._address})"

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space; raise `StoreUnavailable`.

        Lengths are read before values, so that a program that can write there cannot fill our memory. A space of
        more than 256 values is read in several steps, between which other nodes may write.
        """
        name = self._name(space)
        count = self._require_list([await self._run(lambda: self._redis.hlen(name))], int)[0]
        if count > MAX_VALUES:
            raise StoreUnavailable(
                f"Redis at {self._address} holds more than {MAX_VALUES} values in {name}"
            )
        fields = self._require_list(await self._run(lambda: self._redis.hkeys(name)), bytes)
        entries: dict[str, bytes] = {}
        for start in range(0, min(len(fields), MAX_VALUES), _SLICE):
            entries |= await self._read_slice(name, fields[start : start + _SLICE])
        return entries

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; raise `StoreUnavailable`, or `LimitReached` for what is too long.

        As durable as the server is set up to be. When the answer is lost the write may have happened;
        writing again is harmless.
        """
        check_limits(changes)
        if not changes:
            return
        commands = self._redis.pipeline(transaction=True)
        for change in changes:
            if isinstance(change, Put):
                commands.hset(self._name(change.space), change.key, cast("Any", change.value))
            else:
                commands.hdel(self._name(change.space), change.key)
        await self._run(commands.execute)

    async def count(self, counts: Sequence[Count]) -> Sequence[float]:
        """Add to counters of the site with a script that uses the server's clock; raise `StoreUnavailable`."""
        if not counts:
            return []
        names = [f"{self._prefix}:count:{item.name}" for item in counts]
        rows = [(int(item.due), repr(item.amount), math.ceil(item.ttl * 1000)) for item in counts]
        script = self._redis.eval(
            _COUNT, len(names), *names, *(str(v) for row in rows for v in row)
        )
        answer = await self._run(lambda: cast("Awaitable[object]", script))
        amounts = self._require_list(answer, bytes, count=len(counts))
        try:
            return [float(item) for item in amounts]
        except ValueError:
            raise StoreUnavailable(f"Redis at {self._address}: a counter is no number") from None

    async def close(self) -> None:
        """Close the connection; harmless when called twice."""
        if not self._closed:
            self._closed = True
            await self._bounded(lambda: self._redis.aclose(close_connection_pool=True))

    def _name(self, space: Space) -> str:
        owner = "" if space in OF_THE_SITE else f"{self._node}:"
        return f"{self._prefix}:{owner}{space}"

    async def _read_slice(self, name: str, fields: Sequence[bytes]) -> dict[str, bytes]:
        lengths = self._redis.pipeline(transaction=False)
        for field in fields:
            lengths.hstrlen(name, cast("Any", field))
        measured = self._require_list(await self._run(lengths.execute), int, count=len(fields))
        fitting = [
            field
            for field, length in zip(fields, measured, strict=True)
            if length <= MAX_VALUE_BYTES
        ]
        if not fitting:
            return {}
        answer = await self._run(lambda: self._redis.hmget(name, cast("Any", fitting)))
        values = self._require_list(answer, object, count=len(fitting))
        return within_limits(dict(zip(fitting, values, strict=True)))

    def _require_list(self, answer: object, kind: type[T], *, count: int = -1) -> list[T]:
        """Return an answer if it is a list of `kind`, of `count` items if given; raise `StoreUnavailable` otherwise."""
        if not isinstance(answer, list) or count not in {-1, len(answer)}:
            raise StoreUnavailable(f"Redis at {self._address}: an answer of the wrong length")
        if not all(isinstance(part, kind) for part in answer):
            raise StoreUnavailable(f"Redis at {self._address}: an answer of the wrong kind")
        return answer

    async def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return await self._bounded(call)

    async def _bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make one round trip within the timeout, which includes waiting for our turn.

        What the server or the library says may repeat a password (servers quote the arguments of a command that
        they do not know), so only its kind is passed on, and the chain of causes is cut.
        """
        try:
            async with asyncio.timeout(self._timeout), self._lock:
                return await call()
        except TimeoutError:
            reason = f"no answer within {self._timeout:g} s"
        except RedisTimeoutError:
            reason = f"no answer within {self._timeout:g} s"
        except (RedisError, OSError, ValueError) as error:
            reason = _kind(error)
        raise StoreUnavailable(
            f"Redis at {self._address}: {reason}", public_reason=f"Redis: {reason}"
        )


def _kind(error: Exception) -> str:
    """Return what went wrong in none of the library's or server's words, as a sentence where it is a known error."""
    if isinstance(error, AuthenticationError) and "required" in str(error):
        return "the server requires a password"
    text = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "")
    if text:
        return text
    return _reply_kind(str(error), error) if isinstance(error, ResponseError) else _cause(error)


def _reply_kind(text: str, error: ResponseError) -> str:
    if "DB index" in text:
        return "it has no database of this number"
    if code := _CODE.match(text):
        return _CODES.get(code[0], f"{type(error).__name__} {code[0]}")
    return type(error).__name__


def _cause(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return (
                "the TLS handshake failed: its certificate is not trusted, or it does not speak TLS"
            )
        if isinstance(cause, OSError) and cause.errno and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)
        if isinstance(cause, socket.gaierror):
            return "no such host"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _connect(url: str, timeout: float) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=2,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # The library would try ten times with growing pauses; the callers decide that themselves.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
        )
    except ValueError:
        raise ValueError(_USAGE) from None
    return Redis(connection_pool=pool)


def _check(url: str) -> str:
    """Return where the server is, without user and password; raise `ValueError`."""
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        options = parse_qs(parts.query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise ValueError(_USAGE) from None
    # Other options of the library would lift our bounds or turn bytes into text.
    if not all(option == "db" or option.startswith("ssl_") for option in options):
        raise ValueError(_USAGE)
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise ValueError(_USAGE)
    return place


def open_url(url: str, *, data_dir: Path, node: PeerId, timeout: float) -> Store:
    """Return a store for `redis://…`, `rediss://…` or `unix://…`."""
    del data_dir  # Nothing is kept on this machine.
    return RedisStore(url, node=node, timeout=timeout)
