"""Certificate of the HTTP server, reloaded when its files change."""

import asyncio
import logging
import ssl
from pathlib import Path

from node.config.settings import Settings

log = logging.getLogger("modelvine.tls")

PERIOD = 2.0
"""Seconds between two checks of a certificate's files."""

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate of the public listener."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Load the certificate; raise `OSError` with a message for the operator."""
        self._files = chain, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["http/1.1"])
        self._stamp = self._load()

    async def follow(self) -> None:
        """Reload the certificate whenever its files have changed, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Reload the certificate if its files have changed; keep the old one if the new files cannot be used."""
        stamp = _stamp_or_nothing(self._files)
        if stamp == self._stamp:
            return
        try:
            self._stamp = self._load()
        except OSError as error:
            log.warning("keeping the old certificate: %s", error)
            # Logged once; the files are read again after their next change.
            self._stamp = stamp
        else:
            log.info("new connections use the new certificate")

    def _load(self) -> _Stamp:
        chain, key = self._files
        stamp = _stamp(self._files)
        if key.stat().st_mode & 0o007:
            raise OSError(f"{key} can be read by every user: run `chmod o= {key}`")
        # Loaded into a separate context first: the served context with half of a new pair would fail every handshake.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                context.load_cert_chain(chain, key, password=lambda: b"")
            except ssl.SSLError as error:
                reason = error.reason or "an error of OpenSSL"
                raise OSError(
                    f"{chain} and {key} are not a certificate and its key, both in PEM and without a password: {reason}"
                ) from error
        return stamp


def configured_certificate(settings: Settings) -> Certificate | None:
    """Return the certificate of the settings, `None` if they name none; raise `OSError` with a message for the operator."""
    if not settings.node.tls_cert:
        return None
    return Certificate(Path(settings.node.tls_cert), Path(settings.node.tls_key))


def _stamp(files: tuple[Path, Path]) -> _Stamp:
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise OSError(f"{file} cannot be read: {error.strerror}") from error
        stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _stamp_or_nothing(files: tuple[Path, Path]) -> _Stamp:
    """Return `()` where a file is missing or cannot be reached."""
    try:
        return _stamp(files)
    except OSError:
        return ()
