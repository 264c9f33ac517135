"""Standard streams of a command: closed ones are replaced by the null device, and a failed write is reported as such."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from node.errors import OutputFailed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StandardOutput(io.FileIO):
    """Standard output whose first failed write raises `OutputFailed`; what is written later is discarded."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write some bytes, and return how many; raise `OutputFailed`, or `BrokenPipeError` if the reader is gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # The buffers keep what was not written, and try again at the end of the process.
            discard(self.fileno())
            raise OutputFailed(f"standard output cannot be written: {error.strerror}") from error


def prepare() -> None:
    """Replace closed streams, and let standard output report its errors; do so before any other file is opened."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = _nowhere()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not end the command.
        sys.stdout.reconfigure(errors="replace")
        if sys.stdout is sys.__stdout__:
            sys.stdout = _reporting(sys.stdout)
    if sys.stderr is None:
        sys.stderr = _nowhere()


def _nowhere() -> io.TextIOWrapper:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _reporting(out: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = StandardOutput(out.fileno(), "w", closefd=False)
    # With PYTHONUNBUFFERED the interpreter's own stream, too, has no buffer.
    return io.TextIOWrapper(
        raw if isinstance(out.buffer, io.RawIOBase) else io.BufferedWriter(raw),
        encoding=out.encoding,
        errors=out.errors,
        line_buffering=out.line_buffering,
        write_through=out.write_through,
    )


def discard(descriptor: int) -> None:
    """Let a descriptor lead nowhere, so that the interpreter reports no error when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def say_ready(line: str) -> None:
    """Print the line that says that a program serves; it serves even if nothing reads the line."""
    with suppress(BrokenPipeError, OutputFailed):  # the reader may be gone, or a disk full
        print(line, flush=True)


@contextmanager
def shown_once(advice: str) -> Iterator[None]:
    """Write out what the block prints; if that fails, `OutputFailed` also tells what to do about the secrets in it."""
    try:
        yield
        sys.stdout.flush()
    except OutputFailed as error:
        raise OutputFailed(f"{error}\n{advice}") from error
