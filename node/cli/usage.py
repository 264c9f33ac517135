"""Show usage of keys: requests, tokens and seconds, by day, key, model and answering node.

Operators see the whole site; with a user's key (MODELVINE_KEY) you see your own usage. CACHED is the number of input tokens from
a cache, FIRST the mean time to the first byte, COST follows node.prices. `~` before tokens means that some responses did not
report them.

Examples:
  modelvine usage
  modelvine usage --days 30 --by key
  modelvine usage --key ann --by day,model
  modelvine usage --since 2026-11-01 --until 2026-11-30 --csv > november.csv
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from node.cli.console.options import add_json, add_node_options, whole_number

PATH = "/api/v1/usage"
BY = ("day", "key", "model", "node")
MAX_DAYS = 3_660
"""That of `node.faces.v1.usage`, whose import would slow every --help down; a test compares them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    days = whole_number(1, MAX_DAYS)
    add("--days", metavar="N", type=days, default=0, help="the last N days (default: 7)")
    add("--since", metavar="DAY", default="", help="from this day on, like 2026-11-01")
    add("--until", metavar="DAY", default="", help="to this day (default: today, by UTC)")
    add("--key", metavar="NAME", default="", help="this key only")
    add(
        "--by",
        metavar="WHAT",
        default="day,key,model",
        help="group by some of day, key, model and node (default: day,key,model)",
    )
    add("--csv", action="store_true", help="print CSV, for spreadsheets")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the usage."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415

    node = client(arguments)
    query = _asked(arguments)
    if arguments.csv:
        with node.request("GET", _path({**query, "format": "csv"})) as answer:
            print(answer.read().decode(), end="")
        return 0
    rows: Sequence[Mapping[str, Any]] = node.get(PATH, holds="usage", **query)["usage"]
    if arguments.json:
        say_json(rows)
        return 0
    priced = any(row.get("cost") for row in rows)
    by = [name for name in BY if name in arguments.by.split(",")]
    say_table(
        (
            *map(str.upper, by),
            "REQUESTS",
            "FAILED",
            "INPUT",
            "OUTPUT",
            "CACHED",
            "SECONDS",
            "FIRST",
            *(["COST"] if priced else []),
        ),
        (
            (
                *(row[name] for name in by),
                *_figures(row),
                *([f"{row['cost']:,.4f}"] if priced else []),
            )
            for row in rows
        ),
        none="no usage in these days",
    )
    return 0


def _asked(arguments: argparse.Namespace) -> dict[str, str]:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    from node.errors import WrongUsage  # noqa: PLC0415

    since = arguments.since
    if arguments.days:
        if since:
            raise WrongUsage("--days cannot be combined with --since")
        since = (datetime.now(UTC).date() - timedelta(days=arguments.days - 1)).isoformat()
    return {
        "since": since,
        "until": arguments.until,
        "key": arguments.key,
        "by": arguments.by,
    }


def _path(query: Mapping[str, str]) -> str:
    from urllib.parse import urlencode  # noqa: PLC0415

    return f"{PATH}?{urlencode({name: value for name, value in query.items() if value})}"


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    answered = row["requests"] - row["failed"]
    about = "~" if row["estimated"] else ""
    return (
        f"{row['requests']:,}",
        f"{row['failed']:,}",
        f"{about}{row['prompt_tokens']:,}",
        f"{about}{row['completion_tokens']:,}",
        f"{row['cached_tokens']:,}",
        f"{row['seconds']:,.1f}",
        f"{row['first_seconds'] / answered:.3f}" if answered > 0 else "-",
    )
