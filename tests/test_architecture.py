"""Laws over the code itself: which module may import what, how long files and functions are, and that each file has a test."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest

from router.peers import headers
from tests.swarm.conftest import LONG

ROOT = Path(__file__).parent.parent
PACKAGES = ("registry", "router", "node")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted(
    path
    for path in (ROOT / "tests").rglob("*.py")
    if path.name not in {"__init__.py", "test_architecture.py"}
)

MAX_FILE_LINES = 400
# Files that may be longer, up to `MAX_LONGER_LINES`, each with the reason.
MAX_LONGER_LINES = 600
LONGER = {
    "registry/mesh/memory.py": "a mesh in memory: what it does for a node, and its network",
    "router/peers/mux.py": "a multiplexer, and its frames and events",
    "node/faces/errors.py": "one tree of errors and one table of them",
}
MAX_FUNCTION_LINES = 60

CONTRACTS_OF_IMPORTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
# What import-linter keeps free of I/O, with all that it imports: folders, and modules that are built of all the rest.
CORE = {
    name
    for contract in CONTRACTS_OF_IMPORTS
    if contract["name"].startswith("the core of ")
    for name in contract["source_modules"]
}
OUTSIDE = {"aiohttp", "asyncio", "grpc", "libp2p", "psycopg", "redis", "socket", "sqlite3", "time", "trio", "random"}  # fmt: skip

# Modules that may catch every exception, each with the reason. All others catch exceptions by name.
CATCH_ALL = {
    "node/faces/app.py": "the outermost middleware: nothing leaves as a bare 500",
    "node/lane/connection.py": "hands an error that nothing foresaw to the outermost middleware",
    "node/provide/batch/engine.py": "the outermost of one line of a batch: the other lines go on",
    "node/runtime.py": "the supervisor of background tasks",
    "router/peers/tls.py": "a library that raises anything for the certificate that a peer made up",
    "router/rpc/server.py": "the outermost of every RPC: the library would tell the caller an exception's text",
    "registry/mesh/libp2p/guards.py": "guards against libp2p, which raises anything",
    "registry/mesh/libp2p/thread.py": "errors cross to the thread that called",
}
# Modules that may start a task that no TaskGroup owns, each with the reason.
OWN_TASKS = {
    "node/faces/response_writer.py": "owns what it sends to a slow caller, and ends it when the caller leaves",
    "node/lane/connection.py": "owns what answers its request, and cancels it when its caller leaves",
    "registry/task_group.py": "owns the tasks that peers start, and ends them all",
}
# Files that no test imports, each with what tests it all the same.
TESTED_AS_A_WHOLE = {
    "node/__main__.py": "tests/swarm starts nodes through it",
    "node/config/checks.py": "tests/swarm starts whole nodes",
    "node/cli/*.py": "commands are found by their names: see the law about them below",
    "node/cli/console/*.py": "commands speak through it",
    "node/processes/__main__.py": "tests/swarm/test_processes.py starts helpers through it",
    "node/processes/assembly.py": "tests/swarm/test_processes.py runs whole helpers",
    "node/processes/first.py": "tests/swarm/test_processes.py runs nodes with helpers",
    "node/processes/helper.py": "tests/swarm/test_processes.py runs whole helpers",
    "node/faces/grpc/localai/*.py": "tests/node/faces/grpc/test_localai.py asks every RPC",
    "router/failover_others.py": "tests/router/test_failover_stream.py continues streams with it",
    "router/dialects/*/*.py": "parts of dialects, under the contract suite",
    "registry/mesh/libp2p/*.py": "parts of the mesh over libp2p, under the contract suite",
}
# Folders whose files are found by their names, each with the suite that runs over every one.
CONTRACTS = {
    "registry/store": "tests/registry/store/test_contract.py",
    "router/dialects": "tests/router/dialects/test_contract.py",
    "router/policies": "tests/router/policies/test_contract.py",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names that a file imports, function bodies included."""
    names: set[str] = set()
    for part in ast.walk(tree(path)):
        if isinstance(part, ast.Import):
            names |= {alias.name for alias in part.names}
        elif isinstance(part, ast.ImportFrom):
            names |= {f"{part.module}.{alias.name}" for alias in part.names} | {str(part.module)}
    return frozenset(names)


def outside(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def most_lines(path: Path) -> int:
    return MAX_LONGER_LINES if relative(path) in LONGER else MAX_FILE_LINES


def is_core(path: Path) -> bool:
    return any(f"{module(path)}.".startswith(f"{name}.") for name in CORE)


def handlers(path: Path) -> list[ast.ExceptHandler]:
    return [part for part in ast.walk(tree(path)) if isinstance(part, ast.ExceptHandler)]


def longest_function(path: Path) -> int:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions_found = (part for part in ast.walk(tree(path)) if isinstance(part, functions))
    return max(((part.end_lineno or 0) - part.lineno + 1 for part in functions_found), default=0)


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {name.id if isinstance(name, ast.Name) else None for name in caught}
    # A handler that cleans up and raises again has swallowed nothing.
    again = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return not again and (handler.type is None or bool(names & {"Exception", "BaseException"}))


def tasks_started(path: Path) -> Iterator[ast.Call]:
    for part in ast.walk(tree(path)):
        if isinstance(part, ast.Call):
            called = ast.unparse(part.func)
            if re.search(r"(loop\(\)|loop|asyncio)\.create_task$|ensure_future$", called):
                yield part


def breaking(law: Callable[[Path], object], paths: list[Path] = FILES) -> list[str]:
    """Return the files that break a law; `law` says whether a file keeps it."""
    return [relative(path) for path in paths if not law(path)]


def test_every_core_module_exists() -> None:
    assert {module(path) for path in FILES} >= CORE
    assert len([path for path in FILES if is_core(path)]) > 50


def test_the_core_imports_no_io_no_clock_no_randomness_and_no_event_loop() -> None:
    core = [path for path in FILES if is_core(path)]
    assert breaking(lambda path: not outside(path) & OUTSIDE, core) == []


def test_imports_point_from_node_to_router_to_registry() -> None:
    above = {"registry": {"router", "node"}, "router": {"node"}, "node": set[str]()}
    for package, forbidden in above.items():
        inside = [path for path in FILES if module(path).partition(".")[0] == package]
        assert breaking(lambda path, f=forbidden: not outside(path) & f, inside) == []


def test_nothing_that_is_shipped_imports_tests_or_benches() -> None:
    assert breaking(lambda path: not outside(path) & {"tests", "bench"}) == []


@pytest.mark.parametrize(
    ("libraries", "folders"),
    [
        ({"trio", "libp2p"}, ("registry/mesh/",)),
        ({"redis"}, ("registry/store/",)),
        ({"sqlite3"}, ("registry/store/", "node/provide/")),
        ({"grpc", "google"}, ("router/rpc/",)),
    ],
    ids=["libp2p", "redis", "sqlite", "grpc"],
)
def test_a_library_is_imported_in_its_own_folder_only(
    libraries: set[str], folders: tuple[str, ...]
) -> None:
    assert breaking(lambda p: relative(p).startswith(folders) or not outside(p) & libraries) == []


def test_a_file_begins_with_a_docstring() -> None:
    assert breaking(lambda path: ast.get_docstring(tree(path)) or not path.read_text()) == []


def test_no_word_for_people_stands_for_a_program() -> None:
    """These words never name what they are about: a caller, a peer, a reader, a task."""
    vague = re.compile(r"\b(?:whoever|somebody)\b", re.IGNORECASE)
    assert breaking(lambda path: not vague.search(path.read_text())) == []


def test_a_file_is_short() -> None:
    assert breaking(lambda path: lines(path) <= most_lines(path)) == []


def test_a_function_is_short() -> None:
    assert breaking(lambda path: longest_function(path) <= MAX_FUNCTION_LINES) == []


def test_only_the_listed_modules_catch_every_exception() -> None:
    swallowing = [path for path in FILES if any(map(catches_all, handlers(path)))]
    assert breaking(lambda path: relative(path) in CATCH_ALL, swallowing) == []


def test_every_task_has_an_owner() -> None:
    assert breaking(lambda path: relative(path) in OWN_TASKS or not [*tasks_started(path)]) == []


@cache
def imported_by_tests() -> frozenset[str]:
    """Return the modules that tests import, and the packages around them."""
    names = frozenset[str]().union(*map(imports, TESTS))
    return frozenset(
        ".".join(parts[: end + 1])
        for parts in (name.split(".") for name in names)
        for end in range(len(parts))
    )


def has_its_own_test(path: Path) -> bool:
    """Whether a test module mirrors a file or imports it."""
    mirror = ROOT / "tests" / path.relative_to(ROOT).with_name(f"test_{path.name}")
    return mirror.exists() or module(path) in imported_by_tests()


def test_a_file_has_its_test() -> None:
    assert (
        breaking(
            lambda path: (
                has_its_own_test(path)
                or relative(path.parent) in CONTRACTS
                or path.name == "__init__.py"
                or any(fnmatch(relative(path), pattern) for pattern in TESTED_AS_A_WHOLE)
            )
        )
        == []
    )


def test_a_command_is_run_by_a_test() -> None:
    commands_run = {
        part.value
        for test in TESTS
        for part in ast.walk(tree(test))
        if isinstance(part, ast.Constant)
    }
    commands = sorted((ROOT / "node/cli").glob("[!_]*.py"))
    assert breaking(lambda path: path.stem in commands_run | {"demo"}, commands) == []


def test_no_exception_to_a_law_outlives_its_reason() -> None:
    stale = [name for name in LONGER if lines(ROOT / name) <= MAX_FILE_LINES]
    stale += [name for name in CATCH_ALL if not any(map(catches_all, handlers(ROOT / name)))]
    stale += [name for name in OWN_TASKS if not any(tasks_started(ROOT / name))]
    untested = [relative(path) for path in FILES if not has_its_own_test(path)]
    stale += [pattern for pattern in TESTED_AS_A_WHOLE if not filter_names(untested, pattern)]
    stale += [suite for suite in CONTRACTS.values() if not (ROOT / suite).exists()]
    stale += [relative(path) for path in LONG if not path.exists()]
    assert stale == []


@cache
def installed() -> Mapping[str, list[str]]:
    """Return the distributions that bring each top-level module."""
    return packages_distributions()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_dependency_brings_a_module_of_our_name(package: str) -> None:
    assert set(installed().get(package, [])) <= {"modelvine"}


def test_the_search_for_foreign_modules_sees_the_dependencies() -> None:
    # If nothing were installed where the test above looks, that would always pass.
    assert installed()["libp2p"] == ["libp2p"]
    assert any(True for _ in distributions())


def test_every_tests_folder_is_a_package() -> None:
    # Else pytest's import mode would let tests/registry shadow registry.
    folders = {path.parent for path in TESTS}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def looked_up(node: ast.AST) -> Iterator[str]:
    """Yield the names of headers that an expression looks up in `….headers`."""
    match node:
        case ast.Subscript(value=operand, slice=ast.Constant(value=str(name))):
            pass
        case ast.Call(func=ast.Attribute(value=operand, attr="get"), args=[first, *_]):
            name = first.value if isinstance(first, ast.Constant) else ""
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[operand]):
            pass
        case _:
            return
    if isinstance(operand, ast.Attribute) and operand.attr == "headers":
        yield name


def test_headers_of_requests_are_looked_up_by_their_lower_case_names() -> None:
    """Those of workers are kept so, in a plain dictionary: another spelling would never be found."""
    served = [
        *ROOT.glob("node/faces/**/*.py"),
        ROOT / "node/auth/access.py",
        ROOT / "node/connections.py",
        ROOT / "node/heads.py",
    ]
    names = {name for path in served for node in ast.walk(tree(path)) for name in looked_up(node)}
    assert {"origin", "host"} <= names
    assert names == set(map(str.lower, names))


def test_our_own_headers_are_spelt_in_one_place_and_each_is_explained() -> None:
    spelt = {
        relative(path)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and str(node.value).startswith(headers.PREFIX)
    }
    assert spelt == {"router/peers/headers.py"}
    names = {value for value in vars(headers).values() if isinstance(value, str)}
    own_names = {name for name in names if name.startswith(headers.PREFIX)} - {headers.PREFIX}
    # `CALLER` passes only between the processes of one node, so no table explains it.
    explained = (
        headers.CALLER_REQUEST_HEADERS,
        headers.CALLER_ANSWER_HEADERS,
        headers.NODE_REQUEST_HEADERS,
        headers.NODE_ANSWER_HEADERS,
    )
    assert own_names == {headers.CALLER, *(name for table in explained for name in table)}
