"""Probe of an HTTP server: its answer to a small request, or why there is none."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from yarl import URL

from router import worker_headers
from router.dialects import ALIVE_SECONDS
from router.errors import WorkerFailed
from router.http.answer_headers import GZIP, is_encoded
from router.http.errors import CannotConnect, ConnectTimeout, HungUp, NotAdmitted, TlsFailed
from router.http.heads import request_head
from router.http.pool import WorkerPools, request_start
from router.state.readiness import unreached_error
from router.workers import Worker

MAX_HEARD_BYTES = 1024 * 1024
"""Bytes of an answer that are read; a longer answer is unreadable."""

MAX_PROXY_BYTES = 1024
"""Bytes that are read of an answer that a proxy may have written."""

_LATER = frozenset({502, 503, 504})
_TLS = "if it speaks TLS, use https://"
_KEY = "it requires a key: --header 'authorization: Bearer @/path/to/key'"
_MOVED = "it redirects; use the address that it redirects to"
_CUT_OFF = "a proxy answers, but it does not reach the worker"
_REMEDIES: Mapping[int, str] = {
    301: _MOVED,
    302: _MOVED,
    307: _MOVED,
    308: _MOVED,
    401: _KEY,
    403: _KEY,
    502: _CUT_OFF,
    503: "it is loading its model, or is down",
    504: _CUT_OFF,
}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """An HTTP answer, or with `status` 0 the reason why there is none."""

    status: int = 0
    body: bytes = b""
    why: str = ""
    encoded: bool = False
    """Whether the body is compressed, which was not requested."""
    silent: bool = False
    """Whether the server listens but did not answer in time, as one does that loads its model."""

    @property
    def has_answer(self) -> bool:
        """Whether there was an answer, whatever it says."""
        return self.status != 0

    @property
    def alive(self) -> bool:
        """Whether the worker itself answered, whatever it says, and not a proxy that does not reach it."""
        if self.status == 503:
            return unreached_error(self.body) is None
        return self.has_answer and self.status not in _LATER

    @property
    def comes_later(self) -> bool:
        """Whether to ask again: the worker loads its model, or a proxy in front of it does not reach it."""
        return self.status in _LATER

    @property
    def json(self) -> object:
        """The value of a JSON body, `None` for any other."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @property
    def summary(self) -> str:
        """The result in a word or two, with what there is to do about it."""
        match self.status:
            case 0:
                return self.why
            case 400 if b"HTTPS" in self.body:
                # As nginx and Go's servers say it.
                return "400: it speaks TLS; use https://"
            case status if status in _REMEDIES:
                return f"{status}: {_REMEDIES[status]}"
        packed = ": compressed, which was not requested" if self.encoded else ""
        return f"{self.status}{packed}"


async def send_probe(
    pools: WorkerPools,
    worker: Worker,
    url: URL,
    *,
    method: str = "GET",
    body: bytes = b"",
    at_most: int = MAX_HEARD_BYTES,
) -> ProbeResult:
    """Send a small request to a worker within `ALIVE_SECONDS`, with its operator's headers; `at_most` 0 reads no body."""
    reply = None
    try:
        headers = dict(worker_headers.read(worker))
        if body:
            headers["Content-Type"] = "application/json"
        head = request_head(request_start(url, method), headers, len(body))
        async with asyncio.timeout(ALIVE_SECONDS):
            reply = await pools.pool_for(url).ask(head, body)
            content = await reply.read_up_to(at_most) if at_most else b""
            encoded = is_encoded(reply.headers) or content.startswith(GZIP)
            return ProbeResult(reply.status, content, encoded=encoded)
    except WorkerFailed as lacks:
        return ProbeResult(why=str(lacks))
    except OSError as error:
        silent = isinstance(error, (ConnectTimeout, TimeoutError))
        return ProbeResult(why=_silence(error, url), silent=silent)
    finally:
        if reply is not None:
            reply.close()


def _silence(error: OSError, url: URL) -> str:
    match error:
        case NotAdmitted():
            return str(error)
        case TlsFailed():
            return f"{error}; {error.remedy}"
        case CannotConnect():
            return "nothing listens there"
        case ConnectTimeout() | TimeoutError():
            return f"no answer within {ALIVE_SECONDS:g} s"
        case HungUp():
            reason = "it closes the connection without an answer, as a relay that does not reach it"
        case _:
            reason = "it is not an HTTP server"
    return reason if url.scheme == "https" else f"{reason}; {_TLS}"
