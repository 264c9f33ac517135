"""Configuration of logging: the form of lines, and which are written. Nothing else configures it.

Each record is one line on standard error. Text from outside is escaped, so that it cannot forge a line; repeated warnings are
counted, so that they cannot fill a disk.
"""

import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from node.config.sources import can_redraw
from node.errors import NodeError
from node.observe.log_writer import LogWriter, RecentLines, writing_to
from registry.clock import Clock
from registry.errors import RegistryError
from router.errors import RouterError

if TYPE_CHECKING:
    from node.config.settings import NodeSettings

REPEATS = 5
"""Equal warnings or errors that are written within `WINDOW` seconds; further ones are counted."""

WINDOW = 10.0
MAX_TEMPLATES = 1024
"""Distinct warnings that are counted at a time; beyond them the least recently seen one is evicted."""

MAX_LINE = 8192
"""Characters of one message; the rest is cut."""

MAX_FIELD = 256
"""Characters of one field's value, as many as a model's name may have."""

_WORD = re.compile(r'[^\s"\\]*')
_USUAL: Final = re.compile(rf"[!#-\[\]-~]{{0,{MAX_FIELD}}}")
"""Matches in one step what most fields hold: one short word of ASCII."""
_THOUSANDTHS: Final = tuple([f".{thousandth:03d}" for thousandth in range(1_000)])
_EXPECTED = (NodeError, RegistryError, RouterError, OSError)
_FRAMES = 8
_LOOP = "asyncio"  # the logger of uvloop, too
_BLANK = vars(logging.makeLogRecord({}))
_STANDARD = frozenset(_BLANK) | {"message", "asctime", "taskName"}
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def configure(
    *,
    form: Literal["console", "json"],
    level: str,
    colour: bool = False,
    stream: TextIO | None = None,
    clock: Clock = time.monotonic,
) -> logging.Handler:
    """Send every logger's records to `stream` (standard error) and nowhere else; return the handler.

    Call it before libp2p is imported: that library logs while it is imported, which would set up the root logger.
    """
    handler = Log(
        writing_to(stream or sys.stderr),
        JsonLine() if form == "json" else ConsoleLine(colour=colour),
        Repeats(clock),
    )
    # Fields that no line shows need not be looked up for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  (Python's logging HOWTO, "Optimization": nor the caller)
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # At INFO these libraries log their internals; only their warnings concern an operator.
    for chatty in ("asyncio", "libp2p", "multiaddr", "trio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    return handler


def configure_as(settings: "NodeSettings") -> None:
    """Configure logging to standard error as the settings say."""
    configure(form=settings.log_format, level=settings.log_level, colour=wants_colour(sys.stderr))


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to colour output to `stream`: it is a terminal with colours, and NO_COLOR is unset (no-color.org)."""
    return can_redraw(stream, environment) and not environment.get("NO_COLOR")


def recent() -> RecentLines:
    """Return the last lines of the handler of `configure`; none before it is called."""
    handlers = (handler for handler in logging.getLogger().handlers if isinstance(handler, Log))
    return next((handler.recent for handler in handlers), RecentLines())


class RequestLog:
    """Logger of one INFO line per request. It makes no record where the handler of `configure` alone would receive it.

    Handlers and filters that are added or removed hold for the next line, other changes to the loggers within a second.
    """

    def __init__(self, name: str, clock: Clock = time.time) -> None:
        """`clock` is Unix time in seconds."""
        self._name = name
        self._clock = clock
        self._logger = logging.getLogger(name)
        self._only: Log | None = None
        """The handler that alone receives the lines; `None` where others do, or none does."""
        self._looked_at = -math.inf
        """When that was looked up."""
        self._own: list[Any] = []
        self._filters: list[Any] = []
        self._above: list[Any] = []

    def info(self, message: str) -> None:
        """Write a line of printable text, `MAX_LINE` characters at most, unless the logger's level is above INFO."""
        now = self._clock()
        if not 0.0 <= now - self._looked_at < 1.0:
            self._check_setup(now)
        only, above = self._only, self._above
        if only is None or self._own or self._filters or len(above) != 1 or above[0] is not only:
            self._looked_at = -math.inf
            self._logger.info(message)
        else:
            only.add(now, self._name, message)

    def _check_setup(self, now: float) -> None:
        """Check whether the handler of `configure` alone receives the logger's records, and no filter changes them."""
        logger, root = self._logger, logging.root
        self._looked_at = now
        self._own, self._filters, self._above = logger.handlers, logger.filters, root.handlers
        passes = logger.isEnabledFor(logging.INFO) and logger.propagate and logger.parent is root
        handler = self._above[0] if passes and self._above else None
        self._only = handler if isinstance(handler, Log) else None


def quoted(value: str) -> str:
    """Return the value of a field `key=value`: unchanged if it is one word, else as a JSON string.

    Unquoted, a value from outside could pretend to be further fields. A long value is cut.
    """
    if _USUAL.fullmatch(value):
        return value
    cut = value if len(value) <= MAX_FIELD else f"{value[:MAX_FIELD]}… ({len(value)} characters)"
    if _WORD.fullmatch(cut) and cut.isprintable():
        return cut
    return json.dumps(cut)


def thousandths(value: float) -> str:
    """Return a non-negative number with three decimals, in a third of the time that a format takes."""
    number = int(value * 1000 + 0.5)
    return f"{number // 1000}{_THOUSANDTHS[number % 1000]}"


class ConsoleLine(logging.Formatter):
    """`19:04:11.250 INFO    modelvine.node  message  key=value`, local time."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._levels = {
            level: f"\x1b[{code}m{level:<7}\x1b[0m" if colour else f"{level:<7}"
            for level, code in _COLOURS.items()
        }

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        message = escaped(record.getMessage())
        line = self.line(record.created, record.levelname, record.name, message)
        return f"{line}{_rest_of_line(record)}"

    def line(self, created: float, level: str, name: str, message: str) -> str:
        """Return the line of a printable message without extra fields or an exception."""
        milliseconds = int(created * 1000)
        shown = self._levels.get(level, level)
        return f"{_local(milliseconds // 1000)}{_THOUSANDTHS[milliseconds % 1000]} {shown} {name}  {message}"


class JsonLine(logging.Formatter):
    """One JSON object per line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, `error`, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        values = record.created, record.levelname, record.name, escaped(record.getMessage())
        fields = {**_extra(record), **self._fields(*values)}
        error = _error(record)
        if error:
            fields["error"] = error
        return json.dumps(fields, default=str)

    def line(self, created: float, level: str, name: str, message: str) -> str:
        """Return the line of a printable message without extra fields or an exception."""
        return json.dumps(self._fields(created, level, name, message))

    def _fields(self, created: float, level: str, name: str, message: str) -> dict[str, object]:
        moment = datetime.fromtimestamp(created, UTC)
        return {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level.lower(),
            "logger": name,
            "message": message,
        }


class Log(logging.Handler):
    """Handler that passes each record's line to the writer, warnings at once, and reports suppressed lines now and then."""

    def __init__(
        self, write: Callable[[str], object], form: ConsoleLine | JsonLine, repeats: "Repeats"
    ) -> None:
        super().__init__()
        self.setFormatter(form)
        self._form = form
        self.addFilter(without_values)
        self.addFilter(repeats)
        self._repeats = repeats
        self.recent = RecentLines()
        """The last lines."""
        self._lines = LogWriter(write, self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record, and return before it is written."""
        try:
            line = self.format(record)
        except (TypeError, ValueError):  # arguments that do not fit the template
            self.handleError(record)
            return
        text = f"{record.getMessage()}{_rest_of_line(record)}"
        self.recent.add(record.created, record.levelname, record.name, text)
        self._lines.add(line, hurry=record.levelno >= logging.WARNING)

    def add(self, now: float, name: str, message: str) -> None:
        """Take a printable INFO message of a logger, without a record."""
        self.recent.add(now, "INFO", name, message)
        self._lines.add(self._form.line(now, "INFO", name, message))

    def flush(self) -> None:
        """Wait until all lines are written, as long as `LogWriter` waits at most."""
        self._lines.flush()

    def close(self) -> None:
        """Write the remaining lines, the counts of suppressed ones included."""
        for record in self._repeats.due(now=math.inf):
            self._lines.add(self.format(record))
        self._lines.flush()
        super().close()

    def due(self) -> list[str]:
        """Return the lines that tell how often suppressed ones were repeated, where that is due."""
        return [self.format(record) for record in self._repeats.due()]

    def lost(self, count: int) -> str:
        """Return the line that tells how many lines were dropped."""
        message = "%d log lines were dropped: standard error was blocked"
        return self.format(_record("modelvine.log", logging.WARNING, message, count))


def without_values(record: logging.LogRecord) -> bool:
    """Cut what the event loop says about an exception that nothing caught: the objects that it shows may quote a request."""
    if record.name == _LOOP and record.exc_info:
        record.msg, record.args = record.getMessage().partition("\n")[0], None
    return True


_ARGUMENT = re.compile(r"%[.\d]*[a-z]")  # the place of an argument in a template


@dataclass(slots=True)
class _Seen:
    """Count of one warning in its current window."""

    since: float
    level: int
    written: int = 0
    suppressed: int = 0


class Repeats(logging.Filter):
    """Filter that passes a warning or error `REPEATS` times in `WINDOW` seconds, and then reports how many it suppressed.

    Records are equal if their logger and template are: their arguments are often a caller's choice.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._templates: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; append the number of suppressed ones before it."""
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        key = (record.name, str(record.msg))
        with self._lock:
            seen = self._templates.setdefault(key, _Seen(now, record.levelno))
            self._templates.move_to_end(key)
            if len(self._templates) > MAX_TEMPLATES:
                self._templates.popitem(last=False)
            if now - seen.since < WINDOW and seen.written >= REPEATS:
                seen.suppressed += 1
                return False
            left_out = self._passed(seen, now)
        if left_out:
            record.msg = f"{record.getMessage()} (suppressed {left_out} more like this)"
            record.args = None
        return True

    def due(self, now: float | None = None) -> list[logging.LogRecord]:
        """Return records that report suppressed lines, where no later equal line has reported them."""
        now = self._clock() if now is None else now
        with self._lock:
            text = "suppressed %d more like this: %s"
            records = [
                _record(name, seen.level, text, seen.suppressed, _ARGUMENT.sub("…", template))
                for (name, template), seen in self._templates.items()
                if seen.suppressed and now - seen.since >= WINDOW
            ]
            for seen in self._templates.values():
                if now - seen.since >= WINDOW:
                    seen.suppressed = 0
        return records

    def _passed(self, seen: _Seen, now: float) -> int:
        if now - seen.since < WINDOW:
            seen.written += 1
            return 0
        left_out, seen.suppressed = seen.suppressed, 0
        seen.since, seen.written = now, 1
        return left_out


def _record(name: str, level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, message, args, None)


@lru_cache(maxsize=2)
def _local(second: int) -> str:
    # Cached: each request has a line, and many fall into one second.
    return time.strftime("%H:%M:%S", time.localtime(second))


def escaped(text: str) -> str:
    """Return a text as log lines show it: cut, with unprintable characters escaped."""
    cut = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}… ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _rest_of_line(record: logging.LogRecord) -> str:
    """Return the part of a line that follows the message: the record's fields and its exception."""
    extra = "".join(
        [f"  {key}={escaped(quoted(str(value)))}" for key, value in _extra(record).items()]
    )
    error = _error(record)
    return f"{extra}  [{error}]" if error else extra


def _extra(record: logging.LogRecord) -> dict[str, object]:
    attributes = vars(record)
    if len(attributes) == len(_BLANK):
        return {}
    return {key: value for key, value in attributes.items() if key not in _STANDARD}


def _error(record: logging.LogRecord) -> str:
    """Return the record's exception on one line, with the innermost frames of its traceback if it is unexpected."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return ""
    # As in `without_values`, for the text of the exception.
    unforeseen = record.name == _LOOP
    text = type(error).__name__ if unforeseen else escaped(f"{type(error).__name__}: {error}")
    if isinstance(error, _EXPECTED) and not unforeseen:
        return text
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    trace = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{text} at {trace}" if trace else text
