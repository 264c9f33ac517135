"""Mock worker and load generator: two C programs that use little CPU. The worker keeps its port across restarts."""

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOADGEN = HERE / "bin/loadgen"
_MOCK = HERE / "bin/mock_worker"


def build() -> None:
    """Compile the worker and the load generator, if their sources are newer."""
    subprocess.run(["make", "-s", "-C", str(HERE / "csrc")], check=True)


class Mock:
    """Mock worker as a process."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = self._run()

    @property
    def api(self) -> str:
        """URL at which its node reaches it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait(10)

    def again(self) -> None:
        """Start it again."""
        self._process = self._run()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, for example to stop or continue it."""
        self._process.send_signal(number)

    def _run(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(_MOCK), "-p", str(self.port)], stdin=subprocess.DEVNULL)


async def load(mode: str, url: str, body: Path, *more: str, **options: float) -> Mapping:
    """Run the load generator, and return its JSON report; raise `RuntimeError` if it fails."""
    arguments = [mode, "-u", url, "-b", str(body), *more]
    for name, value in options.items():
        arguments += [f"-{name}", f"{value:g}"]
    process = await asyncio.create_subprocess_exec(
        str(LOADGEN), *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    result = json.loads(output)
    if "fatal" in result:
        raise RuntimeError(result["fatal"])
    return result
