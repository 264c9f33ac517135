"""Supervisor of background tasks, signals that end a process, and the lock of a data directory."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import CommandFailed
from node.runtime import (
    Signals,
    ending_signals,
    hold_data_dir_lock,
    hold_file_lock,
    require_threads,
    supervise,
)

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, pathlib
from node.runtime import hold_data_dir_lock
with hold_data_dir_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

# The limit holds for users who are not root.
FEW_THREADS = """
import os, resource
from node.errors import CommandFailed
from node.runtime import require_threads
if os.getuid() == 0:
    os.setuid(54_321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    require_threads()
except CommandFailed as error:
    print(error)
"""

# One stack of a thread fits, two do not.
LITTLE_ADDRESS_SPACE = """
import resource, threading
from pathlib import Path
from node.errors import CommandFailed
from node.runtime import require_threads
MIB = 1 << 20
threading.stack_size(64 * MIB)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 96 * MIB, used + 96 * MIB))
try:
    require_threads()
except CommandFailed as error:
    print(error)
"""


async def test_a_task_that_fails_runs_again_and_the_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []

    async def fails_twice() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise RuntimeError("broken")

    with caplog.at_level(logging.ERROR):
        await supervise("a thing", fails_twice, first_pause=0.0)
    assert runs == [0, 1, 2]
    assert caplog.text.count("a thing failed") == 2


@pytest.mark.parametrize(("well", "pauses"), [(60.0, ["0.1", "0.2"]), (0.0, ["0.1", "0.1"])])
async def test_the_pause_grows_only_while_failures_follow_each_other(
    well: float, pauses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter((RuntimeError("broken"), RuntimeError("broken")))

    async def fails_twice() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    with caplog.at_level(logging.ERROR):
        await supervise("a thing", fails_twice, first_pause=0.1, well=well)
    assert [
        f"restarts in {pause} s" in line
        for pause, line in zip(pauses, caplog.messages, strict=True)
    ] == [True, True]


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_and_the_second_are_told_apart(number: signal.Signals) -> None:
    signals = Signals()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(signals.first.wait(), 5)
    assert not signals.second.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(signals.second.wait(), 5)


@pytest.mark.usefixtures("hangup_ends")
def test_a_closed_terminal_ends_nothing_that_nohup_started() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending_signals() == (signal.SIGTERM, signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in ending_signals()


def test_a_directory_belongs_to_one_process_until_that_one_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(CommandFailed, match="another node already runs"),
            hold_data_dir_lock(tmp_path),
        ):
            pass
        other.kill()
    with hold_data_dir_lock(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(CommandFailed, match="cannot be written"),
        hold_data_dir_lock(tmp_path / "absent"),
    ):
        pass


def test_a_lock_that_another_holds_is_refused_with_the_reason_given(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        hold_file_lock(lock, "free"),
        pytest.raises(CommandFailed, match="in use"),
        hold_file_lock(lock, "in use"),
    ):
        pass
    with hold_file_lock(lock, "in use"):
        pass


def test_too_few_threads_are_noticed_before_the_start_and_told_with_what_to_raise() -> None:
    require_threads()
    limited = subprocess.run(
        [sys.executable, "-c", FEW_THREADS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert limited.stdout.startswith("the system allows 0 more threads, and a node needs 16: raise")


def test_threads_that_lack_address_space_are_told_of_its_limit_too() -> None:
    program = [sys.executable, "-c", LITTLE_ADDRESS_SPACE]
    limited = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "a node needs 16" in limited.stdout
    assert "or of address space (ulimit -v)" in limited.stdout
