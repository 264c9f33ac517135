"""Probe of an HTTP server: its answer to a small request, or why there is none."""

import asyncio
from dataclasses import dataclass

import orjson
from yarl import URL

from router import worker_headers
from router.dialects import ALIVE_SECONDS
from router.errors import WorkerFailed
from router.http.answer_headers import is_encoded
from router.http.errors import CannotConnect, ConnectTimeout, NotAdmitted, TlsFailed
from router.http.heads import request_head
from router.http.pool import Places, start_of
from router.workers import Worker

MAX_HEARD_BYTES = 1024 * 1024
"""Bytes of an answer that are read; a longer answer is unreadable."""

_KEY = "it requires a key: --header 'authorization: Bearer @/path/to/key'"


@dataclass(frozen=True, slots=True)
class Heard:
    """An HTTP answer, or with `status` 0 the reason why there is none."""

    status: int = 0
    body: bytes = b""
    why: str = ""
    encoded: bool = False
    """Whether the body is compressed, which was not requested."""

    @property
    def answered(self) -> bool:
        """Whether there was an answer, whatever it says."""
        return self.status != 0

    @property
    def json(self) -> object:
        """The value of a JSON body, `None` for any other."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @property
    def came(self) -> str:
        """The result in a word or two, with what there is to do about it."""
        match self.status:
            case 0:
                return self.why
            case 401 | 403:
                return f"{self.status}: {_KEY}"
            case 400 if b"HTTPS" in self.body:
                # As nginx and Go's servers say it.
                return "400: it speaks TLS; use https://"
            case 503:
                return "503: it is loading its model, or is down"
            case 301 | 302 | 307 | 308:
                return f"{self.status}: it redirects; use the address that it redirects to"
        packed = ": compressed, which was not requested" if self.encoded else ""
        return f"{self.status}{packed}"


async def glance(
    places: Places,
    worker: Worker,
    url: URL,
    *,
    method: str = "GET",
    body: bytes = b"",
    at_most: int = MAX_HEARD_BYTES,
) -> Heard:
    """Send a small request to a worker within `ALIVE_SECONDS`, with its operator's headers; `at_most` 0 reads no body."""
    reply = None
    try:
        headers = dict(worker_headers.read(worker))
        if body:
            headers["Content-Type"] = "application/json"
        head = request_head(start_of(url, method), headers, len(body))
        async with asyncio.timeout(ALIVE_SECONDS):
            reply = await places.of(url).ask(head, body)
            found = await reply.at_most(at_most) if at_most else b""
            return Heard(reply.status, found, encoded=is_encoded(reply.headers))
    except WorkerFailed as lacks:
        return Heard(why=str(lacks))
    except OSError as error:
        return Heard(why=_silence(error, url))
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
        case _ if url.scheme == "https":
            return "it is not an HTTP server"
        case _:
            return "it is not an HTTP server; if it speaks TLS, use https://"
