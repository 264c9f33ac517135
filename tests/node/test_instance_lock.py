import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import CommandFailed
from node.runtime import only_node_in

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, pathlib
from node.runtime import only_node_in
with only_node_in(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


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
            only_node_in(tmp_path),
        ):
            pass
        other.kill()
    with only_node_in(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be written"), only_node_in(tmp_path / "absent"):
        pass
