"""Log lines of libp2p itself: one line each to ours, for debugging, and never to stderr.

What is an error to the library is mostly a peer that left or lied, which is our daily bread. Any peer can cause as many
of these lines as it likes, so no log that is always on may hold them.
"""

import logging

_log = logging.getLogger("modelvine.mesh")

_LINE_LIMIT = 300


class _Forwarding(logging.Handler):
    """Hands the library's lines on, without tracebacks, shortened: they quote what peers sent."""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0][:_LINE_LIMIT]
        _log.debug("%s: %r", record.name, line)


def route_logs() -> None:
    """Take over the library's loggers; call it after the library's import, which clears them."""
    library = logging.getLogger("libp2p")
    library.handlers = [_Forwarding()]
    library.setLevel(logging.WARNING)
    library.propagate = False
