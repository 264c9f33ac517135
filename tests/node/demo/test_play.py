"""The demo as a process: what it needs, and what is left when it is told to end early."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_LLAMA = """
import sys
sys.modules["xllamacpp"] = None
from node.cli import main
sys.exit(main(["demo"]))
"""


def running_in(folder: Path) -> list[str]:
    """Return the command lines of the processes that name a folder."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(folder) in line:
            lines.append(line)
    return lines


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_leaves_nothing_behind(
    tmp_path: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "node", "demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    while b"node 1 starts" not in process.stdout.readline():
        assert process.poll() is None
    assert running_in(tmp_path)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == 128 + how
    assert (list(tmp_path.iterdir()), running_in(tmp_path)) == ([], [])


def test_without_llama_cpp_the_demo_starts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLAMA],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "llama.cpp is not installed" in done.stderr
