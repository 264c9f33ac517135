"""Memory that a node keeps: long bodies, one after the other, are not taken anew from the kernel each time."""

import platform
import subprocess
import sys

import pytest

ROUNDS, PIECES, BYTES = 10, 3, 5_000_000

PROGRAM = f"""
import resource
from node.runtime import settle

def hold():
    return [b"x" * size for size in [{BYTES}] * {PIECES}]

settle()
hold()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    hold()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told so")
def test_memory_of_a_long_body_is_kept_for_the_next_one():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    # Taken anew, each round would have 3,660 page faults.
    assert int(done.stdout) < ROUNDS * 100
