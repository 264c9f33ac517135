"""gRPC's core library writes nothing to stderr."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

# By default the library itself complains about a port in use.
PROGRAM = """
import asyncio
from router.rpc import channel_pool
from router.rpc.messages import LOCALAI
from router.rpc.server import CannotListen, serving

async def main():
    async with serving(LOCALAI, {}, "127.0.0.1:0") as port:
        try:
            async with serving(LOCALAI, {}, f"127.0.0.1:{port}"):
                pass
        except CannotListen:
            print("taken")

asyncio.run(main())
"""


def ran(**environment: str) -> tuple[str, str]:
    """Return the program's stdout and stderr."""
    env = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"} | environment
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_the_grpc_library_is_silent_unless_its_verbosity_is_set() -> None:
    assert ran() == ("taken\n", "")
    assert "Failed to add port" in ran(GRPC_VERBOSITY="ERROR")[1]
