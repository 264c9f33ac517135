"""A node that is started on a read-only disk says so in one line, and does not serve what it could not keep."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

# A tmpfs in a mount namespace of its own. The kernel makes none read-only on which a file is open for writing, so a node
# that already runs cannot be tested like this; `tests/node/test_full_disk.py` has what it does when writes fail.
IN_A_NAMESPACE = """
mount -t tmpfs none "$1" || exit 77
mkdir -m 700 "$1/data" || exit 77
mount -o remount,ro "$1" || exit 77
exec "$2" -m node up --http 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --no-mdns --data-dir "$1/data"
"""


def test_a_node_on_a_read_only_disk_says_so_and_does_not_start(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("THE READ-ONLY DISK IS NOT TRIED: it needs root")
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", IN_A_NAMESPACE, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if ended.returncode == 77 or "unshare failed" in ended.stderr:
        pytest.skip(f"THE READ-ONLY DISK IS NOT TRIED: it needs mounts: {ended.stderr}")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "Read-only file system" in ended.stderr
