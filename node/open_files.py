"""Limit of open files: each connection is one, and the usual limit is far too small."""

import logging
import resource

from node.config.settings import Settings

log = logging.getLogger("modelvine.node")

MOST = 1_048_576
"""Open files that are asked for where the system has no limit of its own."""

_SPARE = 256  # for the store, the log, the mesh, and what libraries open
_LISTENERS = 2
_PER_CALLER = 2  # its own connection, and that to the worker or node which answers it
_PLENTY = 1_024  # connections: fewer surprise even an operator who set no number


def raise_limit() -> int:
    """Raise the limit on open files as far as the system lets us; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # macOS says that there is no limit, and has one.
        return soft
    return wanted


def fitted(settings: Settings, limit: int) -> Settings:
    """Return settings whose connections fit into `limit` open files, and say so where that takes fewer than were set."""
    most = max(1, (limit - _SPARE) // (_LISTENERS * _PER_CALLER))
    if settings.web.connections <= most:
        return settings
    wanted = "connections" in settings.web.model_fields_set
    log.log(
        logging.WARNING if wanted or most < _PLENTY else logging.DEBUG,
        "%d open files are allowed, which is enough for %d connections to each listener, not %d (web.connections); "
        "raise the limit (LimitNOFILE, ulimit -n)",
        limit,
        most,
        settings.web.connections,
    )
    return settings.model_copy(
        update={"web": settings.web.model_copy(update={"connections": most})}
    )
