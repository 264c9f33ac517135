"""What goes wrong with an exchange over HTTP."""


class HttpError(ConnectionError):
    """What went wrong with an exchange."""


class CannotConnect(HttpError):
    """No connection could be made; nothing was sent."""


class NotAdmitted(CannotConnect):
    """Connections may not be made there; the message says why."""


class ConnectTimeout(HttpError):
    """A connection was not made in time; nothing was sent."""


class HungUp(HttpError):
    """The other side closed too soon; `untouched` says that not a byte of an answer had come."""

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class NotHttp(HttpError):
    """What came is no HTTP answer, or one beyond the limits."""
