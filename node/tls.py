"""TLS of the public face: a certificate that is loaded anew when its files change, and handshakes that are bounded.

A connection takes its place before its handshake, so whoever opens many and says nothing loses his own first, as with plain ones.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from node.config.settings import Settings
from node.connection_limits import ConnectionLimits
from registry.task_group import BackgroundTasks

log = logging.getLogger("modelvine.tls")

HANDSHAKE_SECONDS = 10.0
"""Seconds that a handshake may take."""

PERIOD = 2.0
"""Seconds between two looks at the files of a certificate."""

ACCEPT_PAUSE = 0.5
"""Seconds without accepting anybody where the system has no room for another connection."""

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate that the public face shows."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Load it; raise `OSError` with a sentence."""
        self._files = chain, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["http/1.1"])
        self._stamp = self._load()

    async def follow(self) -> None:
        """Load it anew whenever its files have changed, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.look()

    def look(self) -> None:
        """Load it anew if its files have changed; what cannot be used leaves the one that is shown."""
        try:
            if _stamp(self._files) == self._stamp:
                return
            self._stamp = self._load()
        except OSError as error:
            log.warning("the certificate stays as it was: %s", error)
            # Told once; the next change is looked at again.
            self._stamp = _stamp_or_nothing(self._files)
        else:
            log.info("a new certificate is shown from now on")

    def _load(self) -> _Stamp:
        chain, key = self._files
        stamp = _stamp(self._files)
        if key.stat().st_mode & 0o007:
            raise OSError(f"{key} can be read by every user: run `chmod o= {key}`")
        # Tried apart first: a context that has half of a new one would serve nobody.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                context.load_cert_chain(chain, key, password=lambda: b"")
            except ssl.SSLError as error:
                why = error.reason or "an error of OpenSSL"
                raise OSError(
                    f"{chain} and {key} are no certificate with its key, both in PEM and without a password: {why}"
                ) from error
        return stamp


def certificate_given(settings: Settings) -> Certificate | None:
    """Return the certificate of the settings, `None` where they name none; raise `OSError` with a sentence."""
    if not settings.node.tls_cert:
        return None
    return Certificate(Path(settings.node.tls_cert), Path(settings.node.tls_key))


def _stamp(files: tuple[Path, Path]) -> _Stamp:
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise OSError(f"{file} cannot be read: {error.strerror}") from error
        found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _stamp_or_nothing(files: tuple[Path, Path]) -> _Stamp:
    return _stamp(files) if all(map(os.path.exists, files)) else ()


class Handshake(asyncio.Protocol):
    """Protocol of a connection until its handshake is done, and its caller as limits see it; then what `make` returns follows."""

    def __init__(
        self, address: str, make: Callable[[], asyncio.Protocol], limits: ConnectionLimits
    ) -> None:
        self._address = address
        self._make = make
        self._limits = limits
        self.task: asyncio.Task[None] | None = None
        """What shakes hands."""
        self.ends = asyncio.get_running_loop().time() + HANDSHAKE_SECONDS
        """When the connection is closed unless its handshake is done."""

    def enter(self) -> bool:
        """Take a place; return whether there is one."""
        return self._limits.enter(self, self._address)

    def leave(self) -> None:
        """Give the place back."""
        self._limits.leave(self, self._address)

    def end(self) -> None:
        """Close the connection."""
        if self.task is not None:
            self.task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand over: whoever takes it has a place of its own."""
        self.task = None
        self.leave()
        protocol = self._make()
        cast("asyncio.Transport", transport).set_protocol(protocol)
        protocol.connection_made(transport)


class TlsServer:
    """Accepts connections at one listener, and hands over those whose handshake succeeds."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        limits: ConnectionLimits,
    ) -> None:
        """`make` makes the protocol of a connection whose handshake is done."""
        listener.setblocking(False)  # noqa: FBT003 (the standard library's)
        self._listener = listener
        self._context = context
        self._make = make
        self._limits = limits
        self._tasks = BackgroundTasks()
        self._accepting = self._tasks.spawn(self._accept())
        self._accepting.add_done_callback(lambda _: listener.close())

    def close(self) -> None:
        """Accept nobody any more."""
        self._accepting.cancel()

    async def dismiss(self) -> None:
        """End the handshakes that are under way."""
        await self._tasks.dismiss()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, name = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("no connection can be accepted now: %s", error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            handshake = Handshake(str(name[0]), self._make, self._limits)
            if handshake.enter():
                handshake.task = self._tasks.spawn(self._shake(handshake, connection))
            else:
                connection.close()

    async def _shake(self, handshake: Handshake, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handshake,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            # Scanners, and clients that speak plain HTTP or do not trust the certificate.
            log.debug("a handshake failed: %s", type(error).__name__)
        finally:
            if handshake.task is not None:
                handshake.leave()
