"""Test of wheels for every supported Python: each is compiled, installed into its own environment, and used as a user would.

usage: .venv/bin/python scripts/pythons.py FOLDER [WHEEL]

In each environment: two nodes, a worker registered at one of them, a chat streamed through the other, the worker unregistered,
both nodes ended by SIGTERM. Environments are kept in FOLDER while the lock files are unchanged; the wheels are in FOLDER/dist. A
supported Python that this machine lacks is reported, but is no failure; a Python that fails, or having none at all, is an error.
WHEEL is not built again. The wheel of the newest Python is built from the source distribution (sdist); in addition, one is built
that is not compiled.
"""

import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements-build.lock", "requirements.lock")
PACKAGES = ("node", "registry", "router")
WORDS = ("heard ", "it ", "through ", "the ", "grapevine")

READY_WITHIN = 60.0
KNOWN_WITHIN = 30.0
SEEN_WITHIN = 10.0
ENDED_WITHIN = 30.0
_TAIL = 4000


class Failed(Exception):
    """A check failed; the text says what was seen instead."""


@dataclass(frozen=True, slots=True)
class Python:
    """Interpreter that can make environments."""

    minor: str
    version: str
    program: str


@dataclass(frozen=True, slots=True)
class Build:
    """Build of a wheel for an interpreter: from the tree, from an sdist, or already `made`; with or without compiled modules."""

    python: Python
    sdist: Path | None = None
    made: Path | None = None
    compiled: bool = True

    @property
    def kind(self) -> str:
        """Kind of package that is tested."""
        return "sdist" if self.sdist else "wheel" if self.compiled else "not compiled"


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one build: size in KiB, times in seconds."""

    build: Build
    size: float
    built: float
    ran: float
    result: str


def promised() -> list[str]:
    """Return the versions in the package's classifiers, as `3.N`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matches = (re.fullmatch(r".* :: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in matches if match]


def look_for(minor: str) -> Python | None:
    """Find an interpreter of a version on PATH, in the system's folders or in pyenv's; return `None` if there is none."""
    name = f"python{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [*os.get_exec_path(), "/usr/local/bin", "/usr/bin"]
    folders += [str(each / "bin") for each in sorted(pyenv.glob(f"{minor}.*"), reverse=True)]
    for program in dict.fromkeys(str(Path(folder) / name) for folder in folders):
        if os.access(program, os.X_OK) and (version := _version(program, minor)):
            return Python(minor, version, program)
    return None


def _version(program: str, minor: str) -> str:
    """Return the version of a usable interpreter, empty for an unusable one (pyenv's shims may refuse to run)."""
    code = "import ensurepip, platform, venv; print(platform.python_version())"
    done = subprocess.run(
        [program, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    version = done.stdout.strip()
    return version if done.returncode == 0 and version.startswith(f"{minor}.") else ""


def sdist_of(folder: Path) -> Path:
    """Build the sdist, and return its path."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), folder=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def wheel_of(build: Build, venv: Path, folder: Path) -> Path:
    """Build a wheel in an environment, check its content, and return its path."""
    python, untagged = str(venv / "bin/python"), folder / "untagged"
    untagged.mkdir(parents=True)
    if build.made:
        shutil.copy(build.made, untagged)
    elif build.sdist:
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir")
        _run(*_pip(venv), "wheel", *options, "-w", str(untagged), str(build.sdist))
    else:
        without = () if build.compiled else ("env", "HATCH_BUILD_NO_HOOKS=1")
        _run(
            *without,
            python,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            str(untagged),
            folder=ROOT,
        )
    (wheel,) = untagged.glob("*.whl")
    tools = os.path.relpath(Path(sys.executable).parent, ROOT)
    _run("sh", "scripts/tag.sh", tools, str(wheel), str(folder), folder=ROOT)
    shutil.rmtree(untagged)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    if missing := [p for p in PACKAGES if f"{p}/py.typed" not in names]:
        raise Failed(f"no py.typed in the wheel for {', '.join(missing)}")
    if build.compiled is wheel.name.endswith("-py3-none-any.whl"):
        raise Failed(
            f"{wheel.name} was to be {'compiled' if build.compiled else 'of sources alone'}"
        )
    if "-linux_" in wheel.name:
        raise Failed(f"{wheel.name} is for no other Linux")
    return wheel


def environment(python: Python, folder: Path) -> Path:
    """Return an environment with the wheel's dependencies, hash-checked as in `make install`; reuse a kept one."""
    venv, stamp = folder / python.minor, folder / f"{python.minor}.made"
    digest = hashlib.sha256(f"{python}".encode())
    for lock in LOCKS:
        digest.update((ROOT / lock).read_bytes())
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return venv
    stamp.unlink(missing_ok=True)
    shutil.rmtree(venv, ignore_errors=True)
    _run(python.program, "-m", "venv", str(venv))
    install = [str(venv / "bin/python"), str(ROOT / "scripts/install.py")]
    _run(*install, str(ROOT / LOCKS[0]), shown=True)
    _run(*install, str(ROOT / LOCKS[1]), "--no-build-isolation", shown=True)
    stamp.write_text(digest.hexdigest())
    return venv


def install(wheel: Path, venv: Path) -> None:
    """Install a wheel into an environment, in place of an older one."""
    _run(*_pip(venv), "install", "--no-index", "--no-deps", "--force-reinstall", str(wheel))


def _pip(venv: Path) -> list[str]:
    return [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]


def _run(*command: str, shown: bool = False, folder: Path | None = None) -> str:
    """Run a command outside the source tree, and return its output; raise `Failed` with the end of its output."""
    done = subprocess.run(
        command,
        cwd=folder or tempfile.gettempdir(),
        env=_clean(),
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        output = (done.stdout or "")[-_TAIL:]
        raise Failed(f"`{' '.join(command)}` ended with {done.returncode}\n{output}")
    return done.stdout or ""


def _clean() -> dict[str, str]:
    """Return the environment variables without those that would lead an interpreter or a node back to this source tree."""
    names = (
        n for n in os.environ if not n.startswith(("PYTHON", "MODELVINE_", "PIP_REQUIRE", "MAKE"))
    )
    return {name: os.environ[name] for name in names}


class Worker(BaseHTTPRequestHandler):
    """Worker that answers every POST with a streamed chat, and every GET with a list of its one model.

    After its first word it waits until that has been `seen`, which fails if a node holds it back instead of streaming it.
    """

    seen = threading.Event()

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """List the model."""
        self._say("application/json", [json.dumps({"data": [{"id": "tiny"}]})])

    def do_POST(self) -> None:
        """Stream the words."""
        self.rfile.read(int(self.headers["content-length"]))
        deltas = [{"index": 0, "delta": {"content": word}} for word in WORDS]
        ends = {"index": 0, "delta": {}, "finish_reason": "stop"}
        shared = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        events = [json.dumps({**shared, "choices": [choice]}) for choice in (*deltas, ends)]
        self._say("text/event-stream", [f"data: {event}\n\n" for event in (*events, "[DONE]")])

    def _say(self, kind: str, pieces: Sequence[str]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(sum(map(len, pieces))))
        self.end_headers()
        for number, piece in enumerate(pieces):
            if number == 1 and not self.seen.wait(SEEN_WITHIN):
                return
            self.wfile.write(piece.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def worker() -> Iterator[str]:
    """Run the worker, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Worker) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Node:
    """Node that is run by the command that the wheel installed."""

    def __init__(self, command: str, folder: Path, *options: str) -> None:
        self.log = folder / "log"
        folder.mkdir()
        addresses = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [command, "up", *addresses, "--data-dir", str(folder / "data"), *options],
                cwd=folder,
                # All warnings are shown, so that those of this project's modules are found in the log.
                env={**_clean(), "PYTHONWARNINGS": "always"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def ready(self) -> dict[str, str]:
        """Wait for its ready line, and return the line's fields."""
        out = self.process.stdout
        line = ""
        if out and select.select([out], [], [], READY_WITHIN)[0]:
            line = out.readline().decode().strip()
        if not line.startswith("ready "):
            raise Failed(f"a node did not get ready: {line}\n{self.said()}")
        return dict(pair.split("=", 1) for pair in line.split()[1:])

    def stop(self) -> None:
        """Stop it as a service manager does; raise `Failed` for an exit code, or for errors or own warnings in its log."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(ENDED_WITHIN)
        log = self.said()
        wrong = re.search(
            r"Traceback|internal error|/(?:node|registry|router)/\S+: \w+Warning", log
        )
        if code or wrong:
            raise Failed(f"a node ended with {code}; its log:\n{log[-_TAIL:]}")

    def end(self) -> None:
        """Kill it if it still runs, and release its output."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")


def use(venv: Path, folder: Path, *, compiled: bool) -> None:
    """Use the installed package as a user would; raise `Failed` if something is not as it should be."""
    command, nodes = str(venv / "bin/modelvine"), list[Node]()
    code = "import node, registry, router; print(*(m.__file__ for m in (node, registry, router)))"
    files = _run(str(venv / "bin/python"), "-c", code, folder=folder).split()
    if not all(Path(file).is_relative_to(venv) for file in files):
        raise Failed(f"what runs is not what was installed: {files}")
    version = _run(command, "--version", folder=folder)
    if f"compiled: {'yes' if compiled else 'no'}" not in version:
        raise Failed(f"it says of itself: {version}")
    try:
        nodes.append(Node(command, folder / "one"))
        ready = nodes[0].ready()
        nodes.append(Node(command, folder / "two", "--bootstrap", ready["p2p"]))
        two = nodes[1].ready()
        Worker.seen.clear()
        with worker() as url:
            at_one = ("--node", ready["http"], "--data-dir", str(folder / "one/data"))
            _run(command, "register", "demo", "tiny", url, *at_one, folder=folder)
            _until(
                lambda: "tiny" in _models(two["http"]), "the other node did not hear of the model"
            )
            _chat(two["http"], answered_by=ready["p2p"].rpartition("/")[2])
            _run(command, "unregister", "demo", "tiny", *at_one, folder=folder)
            _until(lambda: not _models(two["http"]), "the model was not taken back")
        for node in reversed(nodes):
            node.stop()
    finally:
        for node in nodes:
            node.end()


def _connect(url: str) -> HTTPConnection:
    return HTTPConnection(url.removeprefix("http://"), timeout=30)


def _models(url: str) -> list[str]:
    connection = _connect(url)
    connection.request("GET", "/v1/models")
    models = json.loads(connection.getresponse().read())["data"]
    connection.close()
    return [model["id"] for model in models]


def _chat(url: str, *, answered_by: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": True}
    connection = _connect(url)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = connection.getresponse()
    first = answer.readline()
    Worker.seen.set()
    text = (first + answer.read()).decode()
    connection.close()
    events = re.findall(r"^data: (\{.*\})$", text, re.MULTILINE)
    choices = [json.loads(event)["choices"] for event in events]
    content = "".join(c[0]["delta"].get("content", "") for c in choices if c)
    by = (answer.getheader("x-modelvine-node"), answer.getheader("x-modelvine-route"))
    is_complete = text.rstrip().endswith("data: [DONE]") and content == "".join(WORDS)
    if answer.status != 200 or by != (answered_by, "direct") or not is_complete:
        raise Failed(f"a chat over a hop: status {answer.status}, by {by}\n{text[-_TAIL:]}")


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + KNOWN_WITHIN
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(otherwise)
        time.sleep(0.1)


def built(build: Build, folder: Path) -> tuple[Path | Failed, float]:
    """Return the wheel, or the reason why there is none, and the seconds of the build."""
    began = time.monotonic()
    name = f"{build.kind}-{build.python.minor}".replace(" ", "-")
    try:
        wheel = wheel_of(build, folder / build.python.minor, folder / "dist" / name)
    except Failed as error:
        return error, time.monotonic() - began
    return wheel, time.monotonic() - began


def prove(build: Build, wheel: Path | Failed, seconds: float, venv: Path) -> Row:
    """Install a wheel and use it; return the result."""
    began = time.monotonic()
    result, size = "ok", 0.0
    try:
        if isinstance(wheel, Failed):
            raise wheel
        size = wheel.stat().st_size / 1024
        install(wheel, venv)
        with tempfile.TemporaryDirectory(prefix="modelvine-") as used:
            use(venv, Path(used), compiled=build.compiled)
    except (Failed, OSError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
        print(f"Python {build.python.version}, {build.kind}: {error}", flush=True)
        result = "FAILED"
    return Row(build, size, seconds, time.monotonic() - began, result)


def builds_of(here: Sequence[Python], sdist: Path, made: Path | None) -> list[Build]:
    """Return the builds to test."""
    *older, newest = here
    builds = [Build(newest, sdist), Build(newest, compiled=False)]
    for python in older:
        fits = made and f"-cp{python.minor.replace('.', '')}-" in made.name
        builds.append(Build(python, made=made if fits else None))
    return builds


def tried(folder: Path, here: Sequence[Python], made: Path | None) -> list[Row]:
    """Build the wheels in parallel, one for each processor at a time, then use them one after the other."""
    shutil.rmtree(folder / "dist", ignore_errors=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda python: environment(python, folder), here))
        builds = builds_of(here, sdist_of(folder / "dist"), made)
        print(f"building {len(builds)} wheels, some of them for a minute each", flush=True)
        wheels = list(pool.map(lambda build: built(build, folder), builds))
    return [
        prove(build, wheel, seconds, folder / build.python.minor)
        for build, (wheel, seconds) in zip(builds, wheels, strict=True)
    ]


def main() -> int:
    """Test all supported Pythons; return 1 unless all that this machine has pass, and it has at least one."""
    folder, *wheels = (Path(path).resolve() for path in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    pythons = {minor: look_for(minor) for minor in promised()}
    here = [python for python in pythons.values() if python]
    try:
        rows = tried(folder, here, wheels[0] if wheels else None) if here else []
    except Failed as error:
        print(error)
        return 1
    print(f"\n{'Python':<10}{'package':<26}{'built':<12}{'ran':<10}result")
    for row in rows:
        times = f"{row.built:.1f} s".ljust(12) + f"{row.ran:.1f} s".ljust(10)
        package = f"{row.build.kind}, {row.size:,.0f} KiB"
        print(f"{row.build.python.version:<10}{package:<26}{times}{row.result}")
    for minor, python in pythons.items():
        if python is None:
            print(f"!!! Python {minor} IS PROMISED, AND THIS MACHINE HAS NONE THAT COULD BE TRIED")
    failed = sum(row.result != "ok" for row in rows)
    print(f"== {len(rows) - failed} passed, {failed} failed")
    return 0 if rows and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
