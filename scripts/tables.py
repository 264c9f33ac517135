"""Generator of the tables in docs/ that come from the code: settings, policies, errors, metrics, events.

usage: .venv/bin/python scripts/tables.py [--write]

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Without --write nothing is changed, and the exit status says
whether a page is stale. A test runs the same comparison.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel

from node.auth.errors import Limited
from node.config import sources
from node.config.allowed import describe_bounds
from node.config.settings import PROFILES
from node.faces import errors
from node.observe.metrics import GaugeValues, Metrics
from node.observe.samples import LINES, WANTED
from registry.effects import EVENTS
from registry.members.liveness import OPENS, REASONS, SHUTS, TABLE, Presence, Status
from registry.records import Service
from router import ledger as router_events
from router import policies
from router.errors import (
    AnswerBroken,
    Looped,
    NobodyServes,
    NoCapacity,
    PoisonousRequest,
    WorkerAway,
    WorkerBusy,
    WorkerLoading,
    WorkerStale,
    WorkerUnreachable,
)
from router.peers import headers
from router.worker_metrics import Figure
from scripts import dialects, rooms
from tests.clients.tried import CLIENTS, KINDS
from tests.real import tried as programs

DOCS = Path(__file__).resolve().parent.parent / "docs"

SIZES = GaugeValues(
    nodes={presence.value: 0 for presence in Presence},
    services=0,
    workers=0,
    worker_figures={Service("p", "m"): {Figure.QUEUED: 0}},
    up={"mesh": True, "store": True},
    frames={"frames_in": 0},
    routed={"retries_refused": 0},
    connections=0,
    wires=0,
    standing=0,
    loop_lag=0.0,
    loop_busy=0.0,
    tasks={"http": 1},
    threads=1,
    relaying={"circuits": 1},
    relayed={"bytes": 1},
)
"""Values that give every metric a sample."""

_CLIENT = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    429: "RateLimitError",
}

_BLOCK = re.compile(r"(<!-- table: (?P<name>[\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WAITS = (
    Limited,
    NobodyServes,
    NoCapacity,
    WorkerAway,
    WorkerBusy,
    WorkerLoading,
    WorkerStale,
    WorkerUnreachable,
    errors.NoRoomForBody,
    errors.TooManyConnections,
)


def settings_table(section: str) -> Iterable[str]:
    """Yield the table of one section's settings."""
    yield "| setting | flag of `up` | variable | default | what it is |"
    yield "|---|---|---|---|---|"
    model = sources.SECTIONS[section]
    for name, field in model.model_fields.items():
        key = f"{section}.{name}"
        flag = f"`{sources.flag(key)}`" if key in sources.FLAG_KEYS else ""
        described = f"{field.description}{_bounds(model, name)}".replace("|", "\\|")
        yield f"| `{name}` | {flag} | `{sources.variable(key)}` | {_shown(field.default)} | {described} |"


def profiles_table() -> Iterable[str]:
    """Yield the table of the settings that each profile changes."""
    changed = sorted({key for delta in PROFILES.values() for key in delta}, key=sources.KEYS.index)
    yield f"| setting | {' | '.join(f'`{name}`' for name in PROFILES)} |"
    yield f"|---|{'---|' * len(PROFILES)}"
    for key in changed:
        section, name = key.split(".")
        default = sources.SECTIONS[section].model_fields[name].default
        cells = " | ".join(_shown(delta.get(key, default)) for delta in PROFILES.values())
        yield f"| `{key}` | {cells} |"


def headers_table(meanings: Mapping[str, str]) -> Iterable[str]:
    """Yield the table of the project's own headers and their meaning."""
    yield "| header | meaning |"
    yield "|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in meanings.items())


def policies_table() -> Iterable[str]:
    """Yield the table of policies, each with its module's summary."""
    yield "| policy | what it does |"
    yield "|---|---|"
    for name in policies.NAMES:
        yield f"| `{name}` | {policies.summary(name)} |"


def errors_table() -> Iterable[str]:
    """Yield the table of all errors that a caller may see."""
    yield "| error | HTTP | `code` | `error.type` | `error.code` | `openai` raises | when | retry? |"
    yield "|---|---|---|---|---|---|---|---|"
    for error, row in (*errors.TABLE.items(), (Exception, errors.INTERNAL)):
        name = "anything else" if error is Exception else f"`{error.__name__}`"
        when = "A bug in modelvine; see the log." if error is Exception else _first_line(error)
        yield (
            f"| {name} | {row.status} | {row.code} | `{row.type}` | `{row.reason}` | {_raised(error, row.status)} | {when} "
            f"| {_again(error, row.status)} |"
        )


def _raised(error: type[Exception], status: int) -> str:
    """Return the exception that OpenAI's Python client raises for an error."""
    if error in errors.INNER:
        return "internal"
    other = "InternalServerError" if status >= 500 else "APIStatusError"
    exception = f"`{_CLIENT.get(status, other)}`"
    return f"{exception}, in a stream `APIError`" if error is AnswerBroken else exception


def metrics_table() -> Iterable[str]:
    """Yield the table of all metric series."""
    text = Metrics().text(SIZES).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    yield "| series | kind | what it counts |"
    yield "|---|---|---|"
    for name, description in re.findall(
        r"^# HELP ((?:modelvine|gen_ai)_\S+) (.*)$", text, re.MULTILINE
    ):
        if not name.endswith("_created"):
            yield f"| `{name}` | {kinds[name]} | {description} |"


def events_table() -> Iterable[str]:
    """Yield the table of the registry's events."""
    yield "| `event` | what it counts | in the log |"
    yield "|---|---|---|"
    for event, description in EVENTS.items():
        frequency = "once an hour" if event in WANTED else "once a minute" if event in LINES else ""
        yield f"| `{event}` | {description} | {frequency} |"


def router_events_table() -> Iterable[str]:
    """Yield the table of the router's events."""
    yield "| `event` | what it counts |"
    yield "|---|---|"
    for event, description in router_events.EVENTS.items():
        yield f"| `{event}` | {description} |"


def liveness_table() -> Iterable[str]:
    """Yield the table of the effect of each evidence on a node in each state, and on this node's own way to it."""
    yield f"| evidence | what was seen | {' | '.join(Status)} | our way |"
    yield f"|---|---|{'---|' * len(Status)}---|"
    effects = {**dict.fromkeys(OPENS, "opens"), **dict.fromkeys(SHUTS, "shuts")}
    for evidence, reason in REASONS.items():
        moves = (TABLE[contact].get(evidence) for contact in Status)
        cells = " | ".join(f"→ {contact}" if contact else "" for contact in moves)
        yield f"| `{evidence}` | {reason} | {cells} | {effects.get(evidence, '')} |"


def clients_table() -> Iterable[str]:
    """Yield the table of the clients that the tests run, with what was tried with each."""
    errors = ("error for an unknown model", "error for a broken stream")
    columns = ("client", "version", "API", *KINDS, *errors)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for client in CLIENTS:
        name = f"`{client.package}` ({client.language})"
        marks = ("yes" if kind in client.tried else "" for kind in KINDS)
        errors = (f"`{client.unknown}`", f"`{client.broken}`")
        yield f"| {' | '.join((name, client.version, client.speaks, *marks, *errors))} |"


def programs_table() -> Iterable[str]:
    """Yield the table of the programs that the tests run behind and before a node, with what was tried with each."""
    columns = ("program", "version", "stands", *programs.KINDS)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for program in programs.PROGRAMS:
        marks = ("yes" if kind in program.tried else "" for kind in programs.KINDS)
        yield f"| {' | '.join((f'`{program.package}`', program.version, program.stands, *marks))} |"


TABLES: Mapping[str, Callable[[], Iterable[str]]] = {
    **{f"settings.{name}": (lambda name=name: settings_table(name)) for name in sources.SECTIONS},
    "profiles": profiles_table,
    "policies": policies_table,
    "errors": errors_table,
    "metrics": metrics_table,
    "events": events_table,
    "router_events": router_events_table,
    "liveness": liveness_table,
    "headers.said_by_callers": lambda: headers_table(headers.CALLER_REQUEST_HEADERS),
    "headers.told_to_callers": lambda: headers_table(headers.CALLER_ANSWER_HEADERS),
    "headers.said_by_nodes": lambda: headers_table(headers.NODE_REQUEST_HEADERS),
    "headers.told_to_nodes": lambda: headers_table(headers.NODE_ANSWER_HEADERS),
    "clients": clients_table,
    "programs": programs_table,
    **dialects.TABLES,
    **rooms.TABLES,
}


def renewed(page: str) -> str:
    """Return a page with all its tables regenerated."""

    def write(block: re.Match[str]) -> str:
        return block[1] + "\n".join(TABLES[block["name"]]()) + "\n" + block[3]

    return _BLOCK.sub(write, page)


def stale() -> Mapping[Path, str]:
    """Return the pages whose tables differ from the code, with their new content."""
    pages = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    return {path: new for path, page in pages.items() if (new := renewed(page)) != page}


def _first_line(error: type[Exception]) -> str:
    return (error.__doc__ or "").partition("\n")[0].replace("|", "\\|")


def _again(error: type[Exception], status: int) -> str:
    if issubclass(error, _WAITS):
        return "yes, after `Retry-After` seconds"
    if issubclass(error, AnswerBroken):
        return "yes, from the start: part of the answer was sent"
    if issubclass(error, Looped):
        return "no, fix the registration first"
    if issubclass(error, PoisonousRequest):
        return "no, it may stop further workers"
    if status >= 500 or status == 408:
        return "yes"
    return "no"


def _bounds(section: type[BaseModel], name: str) -> str:
    bounds = describe_bounds(section, name)
    return f" ({bounds})" if bounds else ""


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{part}`" for part in value) or "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if value != "" else "empty"


def main() -> int:
    """Compare, or write; return the exit status."""
    pages = stale()
    for path, page in pages.items():
        if "--write" in sys.argv[1:]:
            path.write_text(page)
            print(f"written: {path.name}")
        else:
            print(f"stale: {path.name}; run `make docs`")
    return 0 if not pages or "--write" in sys.argv[1:] else 1


if __name__ == "__main__":
    sys.exit(main())
