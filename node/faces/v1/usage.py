"""`/api/v1/usage`: the usage of all keys, for operators; holders of other keys see only their own."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import date, timedelta

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL
from node.auth.usage_row import NOBODY, UsageRow, parse_price, sums, with_costs
from node.faces import Context, UserRoute
from node.faces.errors import WrongParameter
from node.faces.request_reader import done

BY = ("day", "key", "model", "node")
USUAL_DAYS, MAX_DAYS = 7, 3_660

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet takes for a formula (OWASP, CSV injection)."""


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    prices = [*map(parse_price, context.settings.node.prices)]

    async def usage(request: web.Request) -> web.Response:
        principal = request.get(PRINCIPAL, ANYBODY)
        if principal.key is None or principal.is_operator:
            context.access.check_change(request)
            name = request.query.get("key", "")
        else:
            name = principal.name
        since, until = _days(request, context.usage.today())
        by = _by(request)
        usage_rows = await context.usage_log.rows(since, until)
        rows = sums(with_costs((row for row in usage_rows if name in ("", row.key)), prices), by)
        if request.query.get("format") == "csv":
            headers = {"content-type": "text/csv; charset=utf-8"}
            return web.Response(text=_csv(rows, by), headers=headers)
        return done(since=since, until=until, usage=[_shown(row, by) for row in rows])

    return [web.get("/api/v1/usage", usage, asks=UserRoute(elsewhere=True))]


def _days(request: web.Request, today: str) -> tuple[str, str]:
    """Return the first and the last requested day, by default the last week; raise `WrongParameter`."""
    until = _day(request, "until", today)
    usual = date.fromisoformat(until) - timedelta(days=USUAL_DAYS - 1)
    since = _day(request, "since", usual.isoformat())
    return since, until


def _day(request: web.Request, name: str, usual: str) -> str:
    text = request.query.get(name, "")
    if not text:
        return usual
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise WrongParameter(f"{name} must be a day like 2026-11-25", param=name) from None


def _by(request: web.Request) -> Sequence[str]:
    text = request.query.get("by", "")
    if not text:
        return BY
    columns = text.split(",")
    if not set(columns) <= set(BY):
        raise WrongParameter(
            f"by must list some of {', '.join(BY)}, with commas between", param="by"
        )
    return [name for name in BY if name in columns]


def _shown(row: UsageRow, by: Sequence[str]) -> dict[str, object]:
    return {name: value for name, value in asdict(row).items() if name in by or name not in BY}


def _csv(rows: Sequence[UsageRow], by: Sequence[str]) -> str:
    names = [f.name for f in fields(UsageRow) if f.name in by or f.name not in BY]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _cell(value) for name, value in _shown(row, by).items()} for row in rows
    )
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a value that no spreadsheet runs as a formula: other people choose the names of models."""
    if isinstance(value, str) and value.startswith(_FORMULA) and value != NOBODY:
        return f"'{value}"
    return value
