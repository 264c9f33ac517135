"""Compile the byte path with mypyc: a copy of the packages, with the busiest modules beside as machine code.

usage: .venv/bin/python scripts/compile.py FOLDER

It takes about a minute and a C compiler. `PYTHONPATH=FOLDER .venv/bin/modelvine up` runs the copy.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("registry", "router", "node")

MODULES = """
    node/faces/access_log.py node/faces/openai.py node/faces/pump.py node/faces/respond.py
    node/lane/direct.py node/lane/request.py node/lane/response.py
    node/observe/log_writer.py node/observe/logs.py node/observe/metrics.py node/observe/recent_lines.py
    router/answer_times.py router/attempt.py router/choice.py router/desk.py router/dispatch.py router/ledger.py
    router/requests.py router/start.py
    router/http/connection.py router/http/cut_through.py router/http/exchange.py router/http/heads.py
    router/http/pool.py router/http/repeated_head.py router/http/reply.py
    router/openai/body.py router/openai/usage.py
    router/peers/mux.py router/peers/mux_frames.py router/peers/muxed.py router/peers/muxed_stream.py
    router/peers/shared_place.py
    router/select/attempts.py router/select/candidates.py
    router/state/circuit.py router/state/concurrency.py router/state/estimator.py router/state/in_flight.py
    router/state/local_load.py router/state/queue.py router/state/readiness.py router/state/remote_load.py
    router/state/service_time.py router/state/stuck.py
""".split()  # noqa: SIM905  (a list would be a page)
"""What each request or chunk passes.

Not `router/workers.py`, whose fields `vars` stores: a compiled dataclass has none. Not `node/auth/usage.py`: orjson writes its
rows, and crashes on a compiled dataclass.
"""

EVERYWHERE = (
    # mypyc knows dataclasses, but no decorator that makes them, and its classes have slots anyway.
    (r"@value_class\n", "@dataclass(unsafe_hash=True)\n"),
    (r"(@dataclass\([^)\n]*?),? ?slots=True", r"\1"),
    (r"@dataclass\(, ?", "@dataclass("),
    (r"@dataclass\(\)\n", "@dataclass\n"),
    # A word of C.
    (r"self\._thread\b", "self._own_thread"),
)
"""What mypyc 2.4 wants otherwise wherever it stands: patterns, and what they become."""

HERE = {
    "node/faces/access_log.py": (
        ("_lay_out(list(Account.__annotations__)[:MAX_USUAL])\n", ""),  # they are laid out already
    ),
    "node/lane/request.py": (
        ("import HttpVersion11,", "import HttpVersion, HttpVersion11,"),
        ('"line", "output_size")', '"line", "method", "output_size", "version")'),
        ('    method = "POST"\n', "    method: str\n"),
        ("    version = HttpVersion11\n", "    version: HttpVersion\n"),
        (
            "        self.app = app\n",
            '        self.app = app\n        self.method = "POST"\n        self.version = HttpVersion11\n',
        ),
    ),
    "router/http/connection.py": (
        ("        del self._parser\n", "        self._parser = None  # type: ignore\n"),
    ),
    "router/http/reply.py": (
        # These inherit from built-in types.
        *(
            (f"\nclass {name}(", f"\n@mypyc_attr(native_class=False)\nclass {name}(")
            for name in (
                *(
                    "HttpError",
                    "CannotConnect",
                    "NotAdmitted",
                    "ConnectTimeout",
                    "HungUp",
                    "NotHttp",
                ),
                "AnswerHeaders",
            )
        ),
        ("\nimport asyncio\n", "\nimport asyncio\n\nfrom mypy_extensions import mypyc_attr\n"),
        ("    complete = done = False\n", "    complete = False\n    done = False\n"),
    ),
    "router/select/candidates.py": (
        (
            "        made: Any = object.__new__(Candidate)\n",
            "        made = Candidate.__new__(Candidate)\n",
        ),
        ("        seen: Candidate = made\n        return seen\n", "        return made\n"),
    ),
}
"""What it wants otherwise in one module: texts that must stand there, and what they become."""

_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

config, *modules = sys.argv[1:]
made = mypycify(["--config-file", config, *modules], opt_level="1", debug_level="0")
setup(name="modelvine", packages=[], ext_modules=made, script_args=["-q", "build_ext", "--build-lib", "compiled"])
"""


class Failed(Exception):
    """Why nothing was compiled."""


def adapted(module: str, source: str) -> str:
    """Return a module's source as mypyc takes it; raise `Failed` if it is not what `HERE` expects."""
    for pattern, other in EVERYWHERE:
        source = re.sub(pattern, other, source)
    if "@dataclass" in source and not re.search(r"from dataclasses import .*\bdataclass\b", source):
        line = "from dataclasses import dataclass\n"
        source = re.sub(r"^(from|import) ", rf"{line}\1 ", source, count=1, flags=re.MULTILINE)
    for text, other in HERE.get(module, ()):
        if text not in source:
            raise Failed(
                f"{module} has no {text.strip()!r} any more: mend HERE in scripts/compile.py"
            )
        source = source.replace(text, other)
    return source


def copy(folder: Path) -> None:
    """Copy the packages, in place of an older copy; raise `Failed` if the folder holds anything else."""
    here = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if other := sorted(name for name in here - {*PACKAGES} if not name.endswith(".so")):
        raise Failed(
            f"{folder} holds {other[0]}, which is no compiled copy's: name an empty folder"
        )
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )


def compile_in(folder: Path) -> None:
    """Compile the modules of a copy, and put what comes of them beside their sources; raise `Failed`."""
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        for package in PACKAGES:
            shutil.copytree(folder / package, place / package)
        for module in MODULES:
            path = place / module
            path.write_text(adapted(module, path.read_text()))
        (place / "make.py").write_text(_SETUP)
        command = [sys.executable, "make.py", str(ROOT / "pyproject.toml"), *MODULES]
        flags = os.environ.get("CFLAGS", "-O1 -g0")
        done = subprocess.run(
            command, cwd=place, env={**os.environ, "CFLAGS": flags, "PYTHONPATH": str(place)},
            capture_output=True, text=True, check=False, timeout=1_200,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{done.stdout[-6_000:]}{done.stderr[-6_000:]}")
        shutil.copytree(place / "compiled", folder, dirs_exist_ok=True)


def main() -> int:
    """Compile into the folder that the command line names."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    print(f"compiling {len(MODULES)} modules into {folder}: about a minute", flush=True)
    try:
        copy(folder)
        compile_in(folder)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    print(f"compiled: PYTHONPATH={folder} modelvine up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
