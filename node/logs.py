"""What does a log line look like, and which lines are written? The only place that configures logging.

One line per record, on standard error. What comes from outside is escaped, so nobody can forge a line.
"""

import json
import logging
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, TextIO

from node.errors import NodeError
from registry.errors import RegistryError
from router.errors import RouterError

REPEATS = 5
"""Equal warnings that are written within `WINDOW` seconds; the others are counted."""

WINDOW = 10.0
MAX_TEMPLATES = 1024
"""Different warnings that are counted at one time; the one that was quiet for longest is forgotten."""

MAX_LINE = 8192
"""Characters of one message; the rest is cut."""

_EXPECTED = (NodeError, RegistryError, RouterError, OSError)
_FRAMES = 8
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def configure(
    *,
    form: Literal["console", "json"],
    level: str,
    colour: bool = False,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> logging.Handler:
    """Send every logger's records to `stream` (standard error) and nowhere else; return the handler.

    Call it before libp2p is imported: that library logs while it is imported, which would set up the root logger.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLine() if form == "json" else ConsoleLine(colour=colour))
    handler.addFilter(Repeats(clock))
    # What no line of ours shows need not be looked up for every line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Other libraries tell their own story at INFO; only what they complain of concerns an operator.
    for chatty in ("asyncio", "libp2p", "multiaddr", "trio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    return handler


def adopt(name: str) -> None:
    """Bring a library's logger back under the root logger, where the library has taken itself out."""
    logger = logging.getLogger(name)
    logger.propagate = True
    for old in tuple(logger.handlers):
        logger.removeHandler(old)


class ConsoleLine(logging.Formatter):
    """`19:04:11.250 INFO    modelvine.node  message  key=value`, local time."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        level = f"{record.levelname:<7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        extra = "".join(f"  {key}={_escaped(str(value))}" for key, value in _extra(record).items())
        error = _error(record)
        cause = f"  [{error}]" if error else ""
        clock = f"{_local(int(record.created))}.{int(record.msecs):03d}"
        return f"{clock} {level} {record.name}  {_message(record)}{extra}{cause}"


class JsonLine(logging.Formatter):
    """One JSON object per line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, `error`, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            **_extra(record),
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        error = _error(record)
        if error:
            fields["error"] = error
        return json.dumps(fields, default=str)


@dataclass(slots=True)
class _Seen:
    """One warning's count in its present window."""

    since: float
    written: int = 0
    suppressed: int = 0


class Repeats(logging.Filter):
    """Writes a warning `REPEATS` times in `WINDOW` seconds; the first one after that says how many were left out.

    Warnings are equal when logger and template are. Errors always pass: each needs a person.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the record is written, with the count of those before it that were not."""
        if record.levelno != logging.WARNING:
            return True
        now = self._clock()
        key = (record.name, str(record.msg))
        seen = self._seen.setdefault(key, _Seen(now))
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_TEMPLATES:
            self._seen.popitem(last=False)
        if now - seen.since >= WINDOW:
            left_out, seen.suppressed = seen.suppressed, 0
            seen.since, seen.written = now, 1
            if left_out:
                record.msg = f"{record.getMessage()} (suppressed {left_out} more like this)"
                record.args = None
            return True
        if seen.written >= REPEATS:
            seen.suppressed += 1
            return False
        seen.written += 1
        return True


@lru_cache(maxsize=2)
def _local(second: int) -> str:
    # Remembered: there is a line for every request, and many fall into one second.
    return time.strftime("%H:%M:%S", time.localtime(second))


def _message(record: logging.LogRecord) -> str:
    return _escaped(record.getMessage())


def _escaped(text: str) -> str:
    if len(text) <= MAX_LINE and text.isprintable():
        return text
    cut = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}… ({len(text)} characters)"
    return cut.translate(_ESCAPES)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    given = vars(record)
    if given.keys() <= _STANDARD:
        return {}
    return {key: value for key, value in given.items() if key not in _STANDARD}


def _error(record: logging.LogRecord) -> str:
    """Return the record's exception on one line, with its way through the code when it is one we did not expect."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return ""
    said = _escaped(f"{type(error).__name__}: {error}")
    if isinstance(error, _EXPECTED):
        return said
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    way = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{said} at {way}" if way else said
