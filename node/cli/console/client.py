"""HTTP client of the commands, on the standard library's `http.client`. Every wait is bounded."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from node.errors import CommandFailed, NoNode, Refused, WrongUsage

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 30.0
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_ANSWER_BYTES = 64 * 1024 * 1024


_NO_MODEL = 1017
"""Code of the errors about models that no node serves."""


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """The node to talk to: `origin` says where its URL comes from; `token` is empty unless it may be sent there."""

    url: str
    origin: str
    token: str = ""
    certificate: str = ""
    """File of the certificate that it must present, where that is known; else the system's certificates are trusted."""


class Client:
    """Client of one node. Each method raises `NoNode` if it does not answer, and `CommandFailed` if it refuses."""

    def __init__(self, target: NodeEndpoint) -> None:
        self.target = target

    def get(self, path: str, *, holds: str, **query: str) -> dict[str, Any]:
        """Return the JSON object at a path. A node's answer has the field `holds`; raise `CommandFailed` for another."""
        filled = {name: value for name, value in query.items() if value}
        query_string = urlencode(filled, errors="surrogateescape")
        with self.request("GET", f"{path}?{query_string}" if filled else path) as answer:
            payload = self._object(answer)
        if holds not in payload:
            raise self._stranger("does not answer as a node does")
        return payload

    def post(
        self,
        path: str,
        body: Mapping[str, object] | bytes,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> dict[str, Any]:
        """Send a JSON body, or bytes whose type is in the headers, and return the answer's JSON object."""
        with self.request("POST", path, body, headers=headers) as answer:
            return self._object(answer)

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | bytes | None = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        wait: float = ANSWER_TIMEOUT,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its successful answer, unread; `wait` is the most seconds between two of its bytes."""
        parts = urlsplit(self.target.url)
        connection = self._connection(parts)
        try:
            connection.connect()
            connection.sock.settimeout(wait)
            payload = json.dumps(body).encode() if isinstance(body, Mapping) else body
            connection.request(
                method,
                parts.path.rstrip("/") + path,
                payload,
                {
                    **self._headers(payload),
                    **{name: _header(text) for name, text in headers.items()},
                },
            )
            answer = connection.getresponse()
            if answer.status >= 300:
                raise self._refused(answer, f"{method} {path.partition('?')[0]}")
            yield answer
        except TimeoutError as error:
            raise NoNode(self._absent("it did not answer in time")) from error
        except ssl.SSLCertVerificationError as error:
            expected = self.target.certificate
            unlike = f"is not the one in {expected}" if expected else "is not trusted"
            raise NoNode(
                f"the certificate of {self.target.url} {unlike}: {error.verify_message}"
            ) from error
        except OSError as error:
            raise NoNode(self._absent(error.strerror or str(error))) from error
        except http.client.HTTPException as error:
            raise NoNode(
                self._absent(f"it does not speak HTTP ({type(error).__name__})")
            ) from error
        finally:
            connection.close()

    def _connection(self, parts: SplitResult) -> http.client.HTTPConnection:
        host = parts.hostname or ""
        if parts.scheme != "https":
            return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_TIMEOUT)
        file = self.target.certificate
        try:
            context = ssl.create_default_context(cafile=file or None)
        except OSError as error:
            reason = "it is no PEM file" if isinstance(error, ssl.SSLError) else error.strerror
            raise NoNode(
                f"the certificate of {self.target.url} cannot be read from {file}: {reason}"
            ) from error
        if file:
            # Trust exactly this certificate, under any name of the node: it was issued for the names that callers use.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.check_hostname = False
        return http.client.HTTPSConnection(
            host, parts.port, timeout=CONNECT_TIMEOUT, context=context
        )

    def _headers(self, payload: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self.target.token:
            headers["Authorization"] = f"Bearer {self.target.token}"
        return headers

    def _object(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        content = answer.read(MAX_ANSWER_BYTES)
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._stranger("does not answer as a node does")
        return value

    def _refused(self, answer: http.client.HTTPResponse, request: str) -> CommandFailed:
        """Return the error of an error body; a body that is not in a node's form comes from a proxy or another server."""
        content = answer.read(MAX_ANSWER_BYTES)
        try:
            body = json.loads(content)
        except ValueError:
            body = None
        text = body.get("message") if isinstance(body, dict) else None
        if not isinstance(text, str) or not text:
            location = answer.headers.get("Location", "")
            leads = f", a redirect to {location}" if location else ""
            return self._stranger(
                f"is not a node, or a proxy before one: it answers {request} with HTTP {answer.status}{leads}"
            )
        code = body.get("code") if isinstance(body, dict) else None
        after = answer.headers.get("Retry-After", "")
        again = f"; try again in {after} s" if after.isdigit() else ""
        code_text = f", code {code}" if isinstance(code, int) else ""
        message = f"{text}{again} (HTTP {answer.status}{code_text})"
        if answer.status == 404 and code == _NO_MODEL:
            message += "; `modelvine models` lists all models"
        if answer.status == 403 and not self.target.token:
            message += "; set MODELVINE_KEY to the control token or an operator's key, or run this as the node's user"
        return Refused(message, status=answer.status, code=code if isinstance(code, int) else 0)

    def _stranger(self, complaint: str) -> CommandFailed:
        return CommandFailed(
            f"the server at {self.target.url} ({self.target.origin}) {complaint}. "
            "Name the address that `modelvine up` prints after `ready http=`, with --node URL"
        )

    def _absent(self, reason: str) -> str:
        return (
            f"no node answers at {self.target.url} ({self.target.origin}): {reason}. "
            "Start one with `modelvine up`, or set another with --node URL"
        )


def _header(text: str) -> bytes:
    """Return a header's value in UTF-8, as nodes read it; raise `WrongUsage` if it has unprintable characters."""
    if not text.isprintable():
        raise WrongUsage(f"{text!r} cannot be a name: it contains unprintable characters")
    return text.encode()
