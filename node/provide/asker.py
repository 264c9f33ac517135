"""Client for a provider's own requests: it sends them to its node, which routes them to models."""

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlencode

import aiohttp
import orjson

from node.config.sources import configured_key
from router.peers.headers import BACKGROUND, PRIORITY, SESSION
from router.select.candidates import Reason

log = logging.getLogger("modelvine.provide")

MAX_ANSWER_BYTES = 16 * 1024 * 1024

BUSY = frozenset({0, 408, 425, 429, 503})
"""Statuses of a node or worker that is busy or away, which no request is to blame for; 0 is no answer."""

SLOTS_WITHIN = 2.0
"""Seconds for the query of the number of slots; without its answer a batch goes on."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One answer; `status` is 0 if there is none, and `after` is the value of `Retry-After`."""

    status: int
    body: bytes = b""
    request_id: str = ""
    after: str = ""


class Asker:
    """Client of one node; enter it before the first request. With `background`, other callers' requests come first."""

    def __init__(self, node: str, *, background: bool = False) -> None:
        """`node` is the base URL of the node, without `/v1`."""
        self._node = node.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._headers = {"content-type": "application/json"}
        if key := configured_key():
            self._headers["authorization"] = f"Bearer {key}"
        if background:
            self._headers[PRIORITY] = BACKGROUND

    async def __aenter__(self) -> "Asker":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> NodeAnswer:
        """Send a GET, and return the answer."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: bytes, *, session: str = "") -> NodeAnswer:
        """Send JSON, and return the answer."""
        return await self._ask("POST", path, body, session)

    async def slots(self, path: str, model: str) -> int:
        """Return how many concurrent requests all workers of a model accept, 0 if that is unknown for any of them."""
        query = urlencode({"model": model, "kind": path.removeprefix("/v1/")})
        try:
            async with asyncio.timeout(SLOTS_WITHIN):
                reply = await self.get(f"/api/v1/route?{query}")
            route = orjson.loads(reply.body)
            full = (row for row in route["excluded"] if row["reason"] == Reason.FULL)
            rows = [*route["candidates"], *full]
            # A replica without a report yet counts as one slot; it reports its slots with its first answer.
            slots = [1 if row["load"] is None else int(row["load"]["slots"]) for row in rows]
        except (TimeoutError, ValueError, KeyError, TypeError):
            # The slots of one of them are unknown, or the node does not answer.
            return 0
        return sum(slots)

    async def _ask(
        self, method: str, path: str, body: bytes | None, session: str = ""
    ) -> NodeAnswer:
        if self._session is None:
            raise RuntimeError("an asker is entered before it asks")
        url = f"{self._node}{path}"
        headers = self._headers | ({SESSION: session} if session else {})
        try:
            async with self._session.request(method, url, data=body, headers=headers) as response:
                return NodeAnswer(
                    response.status,
                    await _at_most(response, MAX_ANSWER_BYTES),
                    response.headers.get("x-request-id", ""),
                    response.headers.get("retry-after", ""),
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("%s got no answer: %s", path, type(error).__name__)
            return NodeAnswer(0)


async def _at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body; return an empty one if it is longer than `limit`."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            return b""
    return b"".join(pieces)
