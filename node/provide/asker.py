"""Asker of models: sends a provider's own requests to its node, which finds who answers them."""

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlencode

import aiohttp
import orjson

from node.config.sources import key_shown
from router.peers.headers import BACKGROUND, PRIORITY, SESSION
from router.select.candidates import Reason

log = logging.getLogger("modelvine.provide")

MAX_ANSWER_BYTES = 16 * 1024 * 1024

SLOTS_WITHIN = 2.0
"""Seconds for the answer how many slots there are, without which a batch goes on."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One answer; `status` 0 is none at all, and `after` a `Retry-After`."""

    status: int
    body: bytes = b""
    request_id: str = ""
    after: str = ""


class Asker:
    """One node, to be entered before it is asked. In the background, whoever asks for themselves comes first."""

    def __init__(self, node: str, *, background: bool = False) -> None:
        """`node` is the URL of its `/v1`, without that."""
        self._node = node.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._headers = {"content-type": "application/json"}
        if key := key_shown():
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
        """Ask for what is there."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: bytes, *, session: str = "") -> NodeAnswer:
        """Send JSON, and return what is answered."""
        return await self._ask("POST", path, body, session)

    async def slots(self, path: str, model: str) -> int:
        """Return how many requests all workers of a model take at one time, 0 where that is not known of each."""
        said = urlencode({"model": model, "kind": path.removeprefix("/v1/")})
        try:
            async with asyncio.timeout(SLOTS_WITHIN):
                heard = await self.get(f"/api/v1/route?{said}")
            told = orjson.loads(heard.body)
            full = (row for row in told["excluded"] if row["reason"] == Reason.FULL)
            rows = [*told["candidates"], *full]
            # Who has said nothing yet says it with its first answer.
            slots = [1 if row["load"] is None else int(row["load"]["slots"]) for row in rows]
        except (TimeoutError, ValueError, KeyError, TypeError):
            # No slots are known of one of them, or the node does not answer.
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


async def _at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Read a body, nothing of one that is too long."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return b""
    return b"".join(pieces)
