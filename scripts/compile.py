"""Build hook of the wheel: it compiles with mypyc the modules on the path of requests and chunks, next to the sources.

It takes about a minute, and needs a C compiler and mypy. If one is missing, the wheel has only the sources, and a warning says
so. `HATCH_BUILD_NO_HOOKS=1` skips it. `MYPYC_OPT_LEVEL` is the compiler's level of optimization, 1 by default.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, TypeGuard

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("registry", "router", "node")

MODULES = """
    node/faces/access_log.py node/faces/openai.py node/faces/pump.py node/faces/respond.py node/faces/response_writer.py
    node/faces/stream_tap.py
    node/auth/access.py node/auth/principal.py node/auth/quotas.py node/auth/rate_limit.py
    node/auth/books.py node/auth/socket_owner.py node/connections.py node/world.py
    node/faces/peer_access.py node/faces/request_ids.py
    node/lane/calls.py node/lane/connection.py node/lane/direct.py node/lane/request.py node/lane/response.py
    node/observe/log_writer.py node/observe/logs.py node/observe/metrics.py node/observe/recent.py
    node/observe/request_sums.py
    registry/bounded.py registry/hashed.py registry/intake/access_list.py registry/members/deadlines.py
    registry/members/liveness.py registry/members/membership.py registry/own_record.py registry/replica.py
    router/answer.py router/answer_times.py router/attempt.py router/choice.py router/attempt_runner.py router/dispatch.py
    router/failover.py router/failover_stream.py router/failover_recording.py
    router/first_byte_timeout.py router/large_bodies.py router/ledger.py
    router/outcome.py router/requests.py router/slot_discovery.py
    router/dialects/openai_http/endpoints.py router/dialects/openai_http/json_answer.py
    router/dialects/openai_http/worker_call.py router/dialects/peer.py
    router/http/connection.py router/http/cut_through.py router/http/timers.py router/http/exchange.py router/http/heads.py
    router/http/pool.py router/http/reply.py router/http/write_batch.py
    router/openai/body.py router/openai/prefixes.py router/openai/sse.py router/openai/usage.py
    router/peers/links.py router/peers/mux.py router/peers/muxed.py router/peers/muxed_stream.py
    router/peers/paths.py router/peers/shared_pool.py
    router/policies/p2c.py
    router/select/attempts.py router/select/candidates.py router/select/policy.py router/select/rendezvous.py
    router/select/weights.py
    router/state/circuit.py router/state/concurrency.py router/state/estimator.py router/state/in_flight.py
    router/state/prefix_index.py router/state/queue.py
    router/state/readiness.py router/state/remote_load.py router/state/service_time.py router/state/slow_start.py
    router/state/stuck.py
""".split()  # noqa: SIM905  (a list would be a page)
"""Modules that are compiled.

They must hold no dataclass that pydantic, orjson or `vars` reads: these find no fields in a compiled one, and orjson crashes.
That excludes `router/workers.py` and `node/auth/usage_row.py`.
"""

_SUBCLASSED = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
"""

ADAPTED = (
    # mypyc knows dataclasses, but not a decorator that makes them, and its classes have slots anyway.
    (r"@value_class\n", "@dataclass(unsafe_hash=True)\n"),
    (r"(@dataclass\([^)\n]*?),? ?slots=True", r"\1"),
    # Frozen fields would be set in a slow way; mypy has already checked that no code sets one.
    (r"(@dataclass\([^)\n]*?)frozen=True", r"\1unsafe_hash=True"),
    (r"@dataclass\(, ?", "@dataclass("),
    (r"@dataclass\(\)\n", "@dataclass\n"),
    # Interpreted classes inherit from these.
    (
        r"class (Access|AttemptContext|Flow|Hashed|ListenerContext|Policy)(\(ABC\))?:",
        f"{_SUBCLASSED}class \\1\\2:",
    ),
)
"""Source that mypyc 2.4 needs in another form: patterns, and their replacements."""

_CONSTANT = re.compile(
    r"^(_?[A-Z][A-Z0-9_]+)(?:: (?!Final)([^=\n]+))? = (?!TypeVar|ParamSpec)", re.MULTILINE
)

TYPED = ("aiohttp", "httptools", "orjson", "pydantic", "yarl")
"""Dependencies whose types are needed."""

_CONFIG = """
[mypy]
python_version = {0.major}.{0.minor}
ignore_missing_imports = True
follow_imports = silent
"""

_SETUP = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# More compilers need more memory than small machines have.
at_once = min(os.cpu_count() or 1, 4)


class SideBySide(build_ext):
    def build_extensions(self):
        compile = self.compiler.compile

        def compile_all(sources, *, extra_postargs, **options):
            def made(source):
                # mypyc's own functions are few, and each request calls some of them a hundred times.
                own = [] if "__native" in source else ["-O2"]
                return compile([source], extra_postargs=[*extra_postargs, *own], **options)

            with ThreadPoolExecutor(at_once) as compilers:
                return sum(compilers.map(made, sources), [])

        self.compiler.compile = compile_all
        super().build_extensions()


made = mypycify(
    ["--config-file", "mypy.ini", *sys.argv[1:]],
    opt_level=os.environ.get("MYPYC_OPT_LEVEL", "1"), debug_level="0",
    group_name="modelvine", multi_file=True,
)
for one in made:
    # Calls between functions are direct then, and nothing has to be found when it is loaded.
    one.extra_compile_args.append("-fvisibility=hidden")
for name in ("event_texts", "members"):
    source = f"router/openai/{name}.c"
    made.append(Extension(f"router.openai.{name}", [source], extra_compile_args=["-O2"]))
setup(
    name="modelvine", packages=[], ext_modules=made, cmdclass={"build_ext": SideBySide},
    script_args=["-q", "build_ext", "--parallel", str(at_once), "--build-lib", "compiled"],
)
"""


class CannotCompile(Exception):
    """Nothing was compiled; the text says why."""


def adapted(source: str) -> str:
    """Return a module's source in the form that mypyc accepts."""
    for pattern, other in ADAPTED:
        source = re.sub(pattern, other, source)
    if "@dataclass" in source:
        source = importing("dataclasses", "dataclass", source)
    return with_constructors(source)


def with_constants(source: str) -> str:
    """Mark a module's constants as `Final`; otherwise each use of one would look it up in a dictionary."""

    def final(match: re.Match[str]) -> str:
        name, kind = match.groups()
        return f"{name}: Final[{kind}] = " if kind else f"{name}: Final = "

    return importing("typing", "Final", re.sub(_CONSTANT, final, source))


_ENUM = re.compile(r"^class (\w+)\((?:Int|Str)?(?:Enum|Flag)\):", re.MULTILINE)


class _Members(ast.NodeVisitor):
    """Finds where functions read members of these enums, outside patterns, where a plain name would match everything."""

    def __init__(self, enums: set[str]) -> None:
        self._enums = enums
        self._deep = 0
        self.found: list[ast.Attribute] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._deep += 1
        for statement in node.body:
            self.visit(statement)
        self._deep -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_match_case(self, node: ast.match_case) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave them as they are: before Python 3.12, `ast` does not know where in a source their parts are."""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if self._deep and isinstance(node.value, ast.Name) and node.value.id in self._enums:
            self.found += [node] * node.attr.isupper()


def with_members(source: str, enums: set[str]) -> str:
    """Read members of imported enums once, as the module is loaded: `Enum` looks them up in a slow way."""
    tree = ast.parse(source)
    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    names = {alias.asname or alias.name for one in imports for alias in one.names}
    reader = _Members(enums & names)
    reader.visit(tree)
    if not reader.found:
        return source
    lines = source.splitlines(keepends=True)
    for one in sorted(reader.found, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        # Columns count bytes.
        line = lines[one.lineno - 1].encode()
        name = _constant_of(one).encode()
        lines[one.lineno - 1] = (
            line[: one.col_offset] + name + line[one.end_col_offset :]
        ).decode()
    constants = {_constant_of(one): ast.unparse(one) for one in reader.found}
    text = "".join(f"{name}: Final = {member}\n" for name, member in constants.items())
    lines.insert(imports[-1].end_lineno or 0, text)
    return importing("typing", "Final", "".join(lines))


def _constant_of(member: ast.Attribute) -> str:
    return f"_{ast.unparse(member).replace('.', '_')}"


def importing(module: str, name: str, source: str) -> str:
    """Import a name before all other imports, unless it is imported already."""
    if re.search(rf"^from {module} import .*\b{name}\b", source, flags=re.MULTILINE):
        return source
    code = [node for node in ast.parse(source).body if not isinstance(node, ast.Expr)]
    lines = source.splitlines(keepends=True)
    if code:
        lines.insert(code[0].lineno - 1, f"from {module} import {name}\n")
    return "".join(lines)


def with_constructors(source: str) -> str:
    """Write out the `__init__` of dataclasses, as the one that `dataclass` generates would be interpreted."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(d).startswith("dataclass") for d in node.decorator_list
        ):
            lines.insert(node.end_lineno or 0, constructor_of(node))
    return "".join(lines)


def constructor_of(node: ast.ClassDef) -> str:
    """Return the text of a dataclass's `__init__`; empty if it inherits or has its own."""
    methods = {statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)}
    if node.bases or "__init__" in methods:
        return ""
    parameters = ["*"] if "kw_only=True" in " ".join(map(ast.unparse, node.decorator_list)) else []
    sets = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign):
            continue
        name, kind, value = (
            ast.unparse(statement.target),
            ast.unparse(statement.annotation),
            statement.value,
        )
        how = {k.arg: ast.unparse(k.value) for k in value.keywords} if is_field(value) else {}
        factory = how.get("default_factory")
        default = how.get("default") if is_field(value) else value and ast.unparse(value)
        if how.get("init") == "False":
            first = f"({factory})()" if factory else default
            sets += [f"self.{name} = {first}"] if first else []
            continue
        parameters.append(
            f"{name}: {kind} | None = None"
            if factory
            else f"{name}: {kind}" + (f" = {default}" if default else "")
        )
        sets.append(
            f"self.{name} = {name}"
            + (f" if {name} is not None else ({factory})()" if factory else "")
        )
    if "__post_init__" in methods:
        sets.append("self.__post_init__()")
    return "\n    ".join(
        (
            f"\n    def __init__(self, {', '.join(parameters)}) -> None:",
            *(f"    {line}" for line in sets or ["pass"]),
            "",
        )
    )


def is_field(value: ast.expr | None) -> TypeGuard[ast.Call]:
    """Return whether a field's value is a call of `field`."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "field"


def compiled(root: Path, folder: Path) -> Path:
    """Compile a copy of the packages in an empty folder, and return the folder of the results; raise `CannotCompile`."""
    if missing := lacking():
        raise CannotCompile(missing)
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("*.so"))
    for path in (path for package in PACKAGES for path in (folder / package).rglob("*.py")):
        # Compiled modules also use the constants of modules that are not compiled.
        path.write_text(with_constants(path.read_text()))
    sources = [
        path.read_text() for package in PACKAGES for path in (folder / package).rglob("*.py")
    ]
    enums = {name for source in sources for name in _ENUM.findall(source)}
    for module in MODULES:
        path = folder / module
        path.write_text(adapted(with_members(path.read_text(), enums)))
    (folder / "mypy.ini").write_text(_CONFIG.format(sys.version_info))
    (folder / "setup.py").write_text(_SETUP)
    done = subprocess.run(
        [sys.executable, "setup.py", *MODULES], cwd=folder, env={"CFLAGS": "-O1 -g0", **os.environ},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if ": warning: " not in line]
        raise CannotCompile("\n".join(lines[-40:]))
    return folder / "compiled"


def lacking() -> str:
    """Return what the machine lacks, and how to get it; empty if it lacks nothing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler} (Debian, Ubuntu: apt install gcc)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return f"there is no {header} (Debian, Ubuntu: apt install python3-dev)"
    return ""


class CompiledModules(BuildHookInterface[Any]):
    """Hook that adds compiled modules to a wheel, which then fits one kind of machine and one Python."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the compilers, and the dependencies whose types they read, for builds in an isolated environment."""
        needs = self.metadata.core.dependencies
        return ["mypy==2.4.1", "setuptools>=80", *(n for n in needs if n.startswith(TYPED))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, except for an editable install, which runs its sources."""
        if version == "editable":
            return
        self._place = tempfile.TemporaryDirectory()
        self.app.display_info(f"compiling {len(MODULES)} modules: about a minute")
        try:
            folder = compiled(Path(self.root), Path(self._place.name))
        except CannotCompile as failed:
            self.app.display_warning(
                f"not compiled, since {failed}\nthis wheel does the same, but takes more CPU time"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in folder.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary copy."""
        if version != "editable":
            self._place.cleanup()
