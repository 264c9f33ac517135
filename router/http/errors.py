"""Errors of an exchange over HTTP."""


class HttpError(ConnectionError):
    """An exchange failed."""


class CannotConnect(HttpError):
    """No connection could be made; nothing was sent."""


class NotAdmitted(CannotConnect):
    """Connections to that address are not allowed; the message says why."""


class ConnectTimeout(HttpError):
    """A connection was not made in time; nothing was sent."""


class HungUp(HttpError):
    """The other side closed too soon; `untouched` says that no byte of an answer had come."""

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class NotHttp(HttpError):
    """The answer is not HTTP, or exceeds the limits."""


class GivenUp(TimeoutError):
    """The wait was ended early: there is nothing to wait for any more."""
