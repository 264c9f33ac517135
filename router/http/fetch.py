"""Fetch of an image whose address stands in a request: only from the public web, and only where the operator allows it.

Otherwise a caller of a model could make this machine send requests to its neighbours. So the very address that is connected to
must be public, at a port of the web, no redirect is followed, and nothing of the request goes along.
"""

import asyncio
from ipaddress import IPv6Network

from yarl import URL

from registry.intake.dialable import parse_ip
from router.errors import WorkerRejected, WorkerUnable
from router.http.dial import Objection, tcp_dialer
from router.http.errors import HttpError
from router.http.heads import request_head
from router.http.pool import (
    ConnectionPool,
    build_request_start,
    public_context,
)
from router.openai.media_type import type_of
from router.openai.text_writer import refused
from router.settings import RouterSettings

MAX_FETCHED_BYTES = 20 * 1024 * 1024
"""The largest image that is fetched."""

FETCH_SECONDS = 20.0
"""Seconds that fetching an image may take."""

_PORTS = frozenset({80, 443})
# NAT64 and 6to4 addresses, which contain IPv4 addresses of any kind.
_WRAPPED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("2002::/16"))


def objection(address: str, port: int) -> str:
    """Return why images are not fetched from an IP address and port, empty if they may be."""
    if port not in _PORTS:
        return "images are fetched only from ports 80 and 443"
    return "" if is_public(address) else "images are fetched only from the public internet"


def is_public(address: str) -> bool:
    """Return whether an IP literal is public; an IPv4-mapped one counts as its IPv4 address, NAT64 and 6to4 do not count."""
    parsed = parse_ip(address)
    if parsed is None or any(parsed in network for network in _WRAPPED):
        return False
    return parsed.is_global and not parsed.is_multicast


class ImageFetcher:
    """Fetcher of images, with one connection for each."""

    def __init__(self, settings: RouterSettings, objection: Objection = objection) -> None:
        self._settings = settings
        self._objection = objection

    async def image(self, address: str, param: str) -> bytes:
        """Return an image; raise `WorkerUnable` if fetching is off, `WorkerRejected` if it fails or the content is no image."""
        if not self._settings.fetch_images:
            message = "images are not fetched here (router.fetch_images): send the image itself, as a file or a data URI"
            raise WorkerUnable(message, param=param)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                content = await self._fetched(_url_of(address, param))
        except TimeoutError as error:
            raise _unfetched(param, f"it took longer than {FETCH_SECONDS:g} s") from error
        except (HttpError, OSError) as error:
            # The exact reason would tell callers which servers exist where.
            raise _unfetched(param, "its server does not return it") from error
        if len(content) > MAX_FETCHED_BYTES:
            raise _unfetched(param, f"it has more than {MAX_FETCHED_BYTES:,} bytes")
        if not type_of(content).is_image:
            raise _unfetched(param, "it is not a PNG, JPEG, WebP or GIF")
        return content

    async def _fetched(self, url: URL) -> bytes:
        context = public_context() if url.scheme == "https" else None
        pool = ConnectionPool(
            tcp_dialer(url.host or "", url.port or 0, context, objection=self._objection),
            self._settings,
        )
        try:
            head = request_head(build_request_start(url, "GET"), {"Accept": "image/*"}, 0)
            reply = await pool.ask(head, b"")
            try:
                if reply.status != 200:
                    raise HttpError("no image there")
                return await reply.read_up_to(MAX_FETCHED_BYTES)
            finally:
                reply.close()
        finally:
            pool.close()


def _url_of(address: str, param: str) -> URL:
    try:
        url = URL(address)
        usable = url.host and url.port and not url.user and not url.password
    except ValueError as error:
        raise _unfetched(param, "its address is none") from error
    if url.scheme not in ("http", "https") or not usable:
        raise _unfetched(param, "its address is not public")
    return url


def _unfetched(param: str, reason: str) -> WorkerRejected:
    return refused(f"the image cannot be fetched: {reason}", param)
