import asyncio
import gc
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.sources import can_redraw
from node.observe.logs import (
    MAX_LINE,
    MAX_TEMPLATES,
    REPEATS,
    WINDOW,
    ConsoleLine,
    JsonLine,
    Repeats,
    RequestLog,
    configure,
    thousandths,
    wants_colour,
)
from registry.errors import PeerUnreachable


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the logging of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(
    message: str = "hello %s", *args: object, level: int = logging.INFO, **more: object
) -> logging.LogRecord:
    made = logging.LogRecord("modelvine.test", level, __file__, 1, message, args or ("you",), None)
    vars(made).update(more)
    return made


class Written(io.StringIO):
    """Stream that shows all that was written, once it is flushed."""

    def getvalue(self) -> str:
        logging.getLogger().handlers[0].flush()
        return super().getvalue()


class Heard(logging.Handler):
    """Handler of another library."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def written(form: Literal["console", "json"]) -> io.StringIO:
    stream = Written()
    configure(form=form, level="info", stream=stream)
    return stream


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_console_line_has_time_level_logger_and_message() -> None:
    line = ConsoleLine(colour=False).format(record(model="tiny"))
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO    modelvine\.test  hello you  model=tiny", line
    )


def test_colour_is_used_only_when_it_is_asked_for() -> None:
    assert "\x1b[" in ConsoleLine(colour=True).format(record())
    assert "\x1b[" not in ConsoleLine(colour=False).format(record())


def test_a_json_line_is_one_object_with_the_extra_fields() -> None:
    fields = json.loads(JsonLine().format(record(attempts=2)))
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "logger": "modelvine.test",
        "message": "hello you",
        "attempts": 2,
    }


@pytest.mark.parametrize("formatter", [ConsoleLine(colour=False), JsonLine()])
@pytest.mark.parametrize(
    "name",
    [
        "a\nERROR forged",
        "a\rb",
        "a\x1b[2Jb",
        "a\u2028b",
        "a\x9bb",
        "a\u202eb",
        "a\u2066b",
        "a\u061cb",
    ],
)
def test_no_text_can_forge_a_line_or_control_the_terminal(
    formatter: logging.Formatter, name: str
) -> None:
    line = formatter.format(record("model %s", name, seen=name))
    assert line.isprintable()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("one", "one"),
        (7, "7"),
        ("", ""),
        ("two words", '"two words"'),
        ("a  b=c", '"a  b=c"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a\nb", '"a\\nb"'),
        ("a\\nb", '"a\\\\nb"'),
        ("a\u202eb", '"a\\u202eb"'),
    ],
)
def test_the_end_of_a_field_is_unambiguous_whatever_it_holds(value: object, shown: str) -> None:
    line = ConsoleLine(colour=False).format(record(seen=value, last=1))
    assert line.endswith(f"  hello you  seen={shown}  last=1")


def test_an_endless_message_is_cut() -> None:
    line = ConsoleLine(colour=False).format(record("%s", "x" * 100_000))
    assert len(line) < MAX_LINE + 200


def test_an_expected_error_is_shown_without_a_traceback() -> None:
    error = raised(PeerUnreachable("gone"))
    line = ConsoleLine(colour=False).format(
        record(exc_info=(type(error), error, error.__traceback__))
    )
    assert line.endswith("[PeerUnreachable: gone]")


def test_an_unexpected_error_shows_its_traceback_on_the_same_line() -> None:
    error = raised(KeyError("oops"))
    line = ConsoleLine(colour=False).format(
        record(exc_info=(type(error), error, error.__traceback__))
    )
    assert "KeyError: 'oops' at " in line
    assert "raised" in line
    assert "\n" not in line


async def test_an_error_that_no_task_awaits_is_shown_without_what_it_says() -> None:
    async def fail(prompt: str) -> None:
        raise ValueError(prompt)

    # What other tests left behind is no line of this one, and need not be searched again and again.
    gc.collect()
    gc.freeze()
    stream = Written()
    configure(form="console", level="info", stream=stream)
    for number in range(REPEATS + 1):
        task = asyncio.get_running_loop().create_task(fail(f"secret {number}"))
        await asyncio.wait([task])
        del task
        gc.collect()
    gc.unfreeze()
    text = stream.getvalue()
    assert text.count("Task exception was never retrieved  [ValueError at ") == REPEATS
    assert text.count(" fail]") == REPEATS
    assert "secret" not in text


def test_every_logger_writes_to_the_one_stream_at_the_level_that_was_set() -> None:
    log = logging.getLogger("modelvine.somewhere")
    stream = written("console")
    log.info("kept")
    log.debug("left out")
    assert stream.getvalue().count("\n") == 1
    assert "kept" in stream.getvalue()


def test_the_handler_has_the_lock_that_logging_takes_since_python_3_13() -> None:
    handler = configure(form="console", level="info", stream=io.StringIO())
    assert handler.lock is not None
    with handler.lock:
        logging.getLogger("modelvine.test").info("a thread takes its own lock again")


def test_configuring_twice_does_not_write_twice() -> None:
    log = logging.getLogger("modelvine.somewhere")
    written("console")
    stream = written("json")
    log.info("once")
    assert stream.getvalue().count("once") == 1


def test_repeated_warnings_are_counted_instead_of_written() -> None:
    now = [100.0]
    repeats = Repeats(lambda: now[0])
    passed = [
        repeats.filter(record("dropped %d", number, level=logging.WARNING)) for number in range(50)
    ]
    assert passed == [True] * REPEATS + [False] * (50 - REPEATS)
    now[0] += WINDOW
    warning = record("dropped %d", 50, level=logging.WARNING)
    assert repeats.filter(warning)
    assert warning.getMessage() == f"dropped 50 (suppressed {50 - REPEATS} more like this)"
    assert repeats.filter(record("dropped %d", 51, level=logging.WARNING))


def test_different_warnings_do_not_hide_each_other() -> None:
    repeats = Repeats(lambda: 0.0)
    for _ in range(REPEATS + 1):
        repeats.filter(record("one %s", level=logging.WARNING))
    assert not repeats.filter(record("one %s", level=logging.WARNING))
    assert repeats.filter(record("two %s", level=logging.WARNING))


def test_a_flood_of_errors_is_counted_too_but_lines_of_level_info_are_not() -> None:
    repeats = Repeats(lambda: 0.0)
    passed = [repeats.filter(record("bad %s", level=logging.ERROR)) for _ in range(100)]
    assert sum(passed) == REPEATS
    assert all(repeats.filter(record("done %s", level=logging.INFO)) for _ in range(100))


def test_the_count_of_a_flood_that_has_ended_is_told_once() -> None:
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    for _ in range(50):
        repeats.filter(record("bad %s", level=logging.ERROR))
    assert repeats.due() == []
    now[0] = WINDOW
    (summary,) = repeats.due()
    assert summary.levelname == "ERROR"
    assert summary.getMessage() == f"suppressed {50 - REPEATS} more like this: bad …"
    assert repeats.due() == []


def test_the_count_of_a_flood_is_told_at_the_end_of_the_process() -> None:
    stream = written("console")
    for _ in range(50):
        logging.getLogger("modelvine.test").warning("dropped %s", "x")
    logging.getLogger().handlers[0].close()
    assert stream.getvalue().count("\n") == REPEATS + 1
    assert f"suppressed {50 - REPEATS} more like this: dropped …" in stream.getvalue()


def test_the_number_of_counted_warnings_is_bounded() -> None:
    repeats = Repeats(lambda: 0.0)
    for number in range(MAX_TEMPLATES * 2):
        repeats.filter(record(f"template {number} %s", level=logging.WARNING))
    assert len(repeats._templates) == MAX_TEMPLATES


def test_records_treat_their_arguments_as_logging_does() -> None:
    stream = written("console")
    log = logging.getLogger("modelvine.test")
    made = logging.getLogRecordFactory()("n", logging.INFO, "p.py", 7, "m", (), None)
    assert vars(made).keys() == vars(logging.LogRecord("n", 20, "p.py", 7, "m", (), None)).keys()
    log.info("%(first)s and %(second)s", {"first": 1, "second": 2})
    log.info("one %s", {})
    log.info("more", extra={"key": "value"})
    lines = [line.partition("modelvine.test  ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["1 and 2", "one {}", "more  key=value"]


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_line_of_a_request_is_the_same_as_that_of_a_log_record(
    form: Literal["console", "json"],
) -> None:
    stream = written(form)
    message = 'request=r-1 model="ti\\nny" share=100%s'
    RequestLog("modelvine.test").info(message)
    logging.getLogger("modelvine.test").info(message)
    moment = r"\d\d:\d\d:\d\d\.\d{3}"
    one, other = (re.sub(moment, "", line) for line in stream.getvalue().splitlines())
    assert one == other
    assert "request=r-1" in one
    assert "share=100%s" in one


def test_another_handler_gets_the_record_of_a_request() -> None:
    stream, handler = written("console"), Heard()
    log, logger = RequestLog("modelvine.test"), logging.getLogger("modelvine.test")
    logger.addHandler(handler)
    try:
        log.info("hello you")
    finally:
        logger.removeHandler(handler)
    assert [(r.name, r.levelname, r.getMessage()) for r in handler.records] == [
        ("modelvine.test", "INFO", "hello you")
    ]
    assert stream.getvalue().count("hello you") == 1


def test_a_change_to_the_loggers_holds_for_the_next_request() -> None:
    stream, handler = written("console"), Heard()
    log, logger = RequestLog("modelvine.test"), logging.getLogger("modelvine.test")
    log.info("one")
    logging.getLogger().addHandler(handler)
    log.info("two")
    logging.getLogger().removeHandler(handler)
    for name, value in (("propagate", False), ("disabled", True)):
        before = getattr(logger, name)
        setattr(logger, name, value)
        log.info("to nobody")
        setattr(logger, name, before)
    log.info("three")
    assert [record.getMessage() for record in handler.records] == ["two"]
    texts = [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()]
    assert texts == ["one", "two", "three"]
    again = written("console")
    log.info("four")
    assert again.getvalue().endswith("  four\n")


def test_a_level_holds_for_requests_within_a_second() -> None:
    stream, now = written("console"), [100.0]
    log, logger = RequestLog("modelvine.test", lambda: now[0]), logging.getLogger("modelvine.test")
    log.info("one")
    logger.setLevel(logging.WARNING)
    now[0] += 1.0
    log.info("too low")
    logger.setLevel(logging.NOTSET)
    # A clock that is set back does not delay it.
    for now[0], message in ((50.0, "two"), (10.0, "three")):
        log.info(message)
    assert [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()] == [
        "one", "two", "three",
    ]  # fmt: skip


def test_a_filter_of_the_logger_and_its_level_hold_for_requests_too() -> None:
    stream = written("console")
    log, logger = RequestLog("modelvine.test"), logging.getLogger("modelvine.test")
    refused = logging.Filter("elsewhere")
    logger.addFilter(refused)
    log.info("refused")
    logger.removeFilter(refused)
    logger.setLevel(logging.WARNING)
    log.info("too low")
    logger.setLevel(logging.NOTSET)
    log.info("written")
    assert [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()] == ["written"]


@given(st.floats(min_value=0, max_value=1e6))
def test_a_number_has_three_decimals(value: float) -> None:
    shown = thousandths(value)
    assert re.fullmatch(r"\d+\.\d{3}", shown)
    assert float(shown) == pytest.approx(value, abs=0.000_51)


def test_no_color_and_a_dumb_terminal_are_respected() -> None:
    master, slave = os.openpty()
    with os.fdopen(master, "rb"), os.fdopen(slave, "w") as terminal:
        assert wants_colour(terminal, {})
        assert not wants_colour(terminal, {"NO_COLOR": "1"})
        assert can_redraw(terminal, {"NO_COLOR": "1"})
        assert not wants_colour(terminal, {"TERM": "dumb"})
        assert not can_redraw(terminal, {"TERM": "dumb"})


def test_a_file_is_not_coloured(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        assert not wants_colour(file, {})
