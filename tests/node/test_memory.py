"""Memory of a process that serves: freed memory is kept for reuse, and given back to the system while unused."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc can be told what to keep"
)

ROUNDS, PIECES, BYTES = 10, 9, 5_000_000


def said(program: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(done.stdout)


HEAD = f"""
import asyncio
import resource
from pathlib import Path
from node import memory

def use():
    [b"x" * size for size in [{BYTES}] * {PIECES}]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

memory.configure_collector()
use()
"""


def test_freed_memory_is_reused_with_few_page_faults():
    page_faults = said(
        f"before = faults(); [use() for _ in range({ROUNDS})]; print(faults() - before)"
    )
    # Without reuse, each round would have 11,000 page faults.
    assert page_faults < ROUNDS * 100


def test_unused_memory_is_given_back():
    given_back = """
async def live():
    giving = asyncio.create_task(memory.release_forever(0))
    while resident() > before - 40_000_000:
        await asyncio.sleep(0)
    giving.cancel()

before = resident()
asyncio.run(asyncio.wait_for(live(), 30))
print(before - resident())
"""
    assert said(given_back) > PIECES * BYTES * 0.8
