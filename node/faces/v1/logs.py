"""`/api/v1/logs` and `/api/v1/audit`: the last lines of this node's log, and who changed what at this site.

Both are for operators only, since they name models, nodes and people.
"""

import logging
import math
from dataclasses import asdict

from aiohttp import web

from node.auth.audit import faults
from node.faces import Context
from node.faces.errors import WrongParameter
from node.faces.request_reader import count_in_query, done
from node.observe.log_writer import LogLine
from node.observe.logs import escaped

USUAL = 100
LEVELS = ("debug", "info", "warning", "error")


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def logs(request: web.Request) -> web.Response:
        context.access.check_change(request)
        least, since = _level(request), _since(request)
        number = count_in_query(request, default=USUAL)
        lines = await context.aggregate.lines_since(since)
        shown_lines = [line for line in lines if _severity(line.level) >= least]
        return done(logs=[shown(line) for line in shown_lines[-number:]])

    async def audit(request: web.Request) -> web.Response:
        context.access.check_change(request)
        number = count_in_query(request, default=USUAL)
        entries = await context.audit.entries()
        newest = sorted(entries, key=lambda entry: entry.at)[-number:]
        return done(faults=list(faults(entries)), audit=[asdict(entry) for entry in newest])

    return [web.get("/api/v1/logs", logs), web.get("/api/v1/audit", audit)]


def shown(line: LogLine) -> dict[str, object]:
    """Return a log line as operators see it."""
    return {
        "time": round(line.time, 6),
        "level": line.level.lower(),
        "logger": line.logger,
        "message": escaped(line.message),
        "process": line.process,
        "number": line.number,
    }


def _severity(level: str) -> int:
    # Levels that a library invented count as errors, so that they are always shown.
    return logging.getLevelNamesMapping().get(level, logging.ERROR)


def _level(request: web.Request) -> int:
    level = request.query.get("level", LEVELS[0])
    if level not in LEVELS:
        raise WrongParameter(f"level must be one of {', '.join(LEVELS)}", param="level")
    return _severity(level.upper())


def _since(request: web.Request) -> float:
    text = request.query.get("since", "0")
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise WrongParameter("since must be seconds since 1970, like 1764093600.5", param="since")
    return since
