"""Errors of an exchange over HTTP."""

import ssl

from httptools import HttpParserError, HttpParserUpgrade

_UNTRUSTED = ("is not trusted", "start the node with SSL_CERT_FILE=/path/to/ca.pem")
_CERTIFICATE_ERRORS = {
    9: ("is not valid yet", "check the clocks of both machines"),
    10: ("has expired", "renew it"),
    62: ("is for another name", "use a name that it is for"),
    64: ("is for another address", "use an address or name that it is for"),
}
"""X509_V_ERR_… of OpenSSL's `x509_vfy.h`, and what to do; the others mean that the certificate is not trusted."""

_NO_TLS = frozenset(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
)
"""OpenSSL's reasons for bytes that are no TLS record; which it gives depends on its version."""


class HttpError(ConnectionError):
    """An exchange failed."""


class CannotConnect(HttpError):
    """No connection could be made; nothing was sent."""


class TlsFailed(CannotConnect):
    """The TLS handshake failed; `remedy` says what an operator may do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class NotAdmitted(CannotConnect):
    """Connections to that address are not allowed; the message says why."""


class ConnectTimeout(HttpError):
    """A connection was not made in time; nothing was sent."""


class HungUp(HttpError):
    """The other side closed too soon; `untouched` says that no byte of an answer had come."""

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class LinkStuck(HttpError):
    """Bytes of this side of a link do not arrive any more; those of this stream very likely did not."""


class NotHttp(HttpError):
    """The answer is not HTTP, or exceeds the limits."""


class WaitEnded(TimeoutError):
    """The wait was ended early: there is nothing to wait for any more."""


def parser_failure(error: HttpParserError | HttpParserUpgrade) -> NotHttp:
    """Return the error for an answer that the parser did not take, with its reason."""
    why = error if isinstance(error, HttpParserError) else "it switches to another protocol"
    return NotHttp(f"the response is not HTTP: {why}")


def tls_failure(error: ssl.SSLError) -> TlsFailed:
    """Return why a TLS handshake failed, in words that name no address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        wrong, remedy = _CERTIFICATE_ERRORS.get(error.verify_code, _UNTRUSTED)
        return TlsFailed(f"its TLS certificate {wrong}", remedy)
    if error.reason in _NO_TLS:
        return TlsFailed("it does not speak TLS", "use http://")
    return TlsFailed("its TLS handshake failed", "see its log")
