"""Modules that a wheel has as machine code compile from the sources, and without a compiler there is still a wheel."""

import ast
import pkgutil
from enum import Enum
from importlib import import_module
from types import FunctionType

import pytest
from hatchling.bridge.app import Application
from pydantic import BaseModel, TypeAdapter

import node
import registry
import router
from node.auth.usage_row import UsageRow
from registry import hashed
from registry.records import Service
from scripts import compile as hook

ROOT = hook.Path(hook.__file__).resolve().parent.parent


def initialized(version: str) -> dict:
    build_data = {"pure_python": True, "infer_tag": False, "force_include": {}}
    build_hook = hook.CompiledModules(str(ROOT), {}, None, None, "", "wheel", Application())
    build_hook.initialize(version, build_data)
    build_hook.finalize(version, build_data, "")
    return build_data


@pytest.mark.parametrize("module", hook.MODULES)
def test_a_module_is_adapted_and_nothing_is_left_that_mypyc_refuses(module):
    adapted = hook.adapted(hook.with_members((ROOT / module).read_text(), {"Kind", "Presence"}))
    ast.parse(adapted)
    assert "@value_class" not in adapted
    assert "slots=True" not in adapted
    assert "._thread " not in adapted
    # It would be computed again at each reading.
    assert "cached_property" not in adapted


def waits(statement: ast.stmt) -> bool:
    """Whether the code after a statement may run behind an `await` in it."""
    ends = isinstance(getattr(statement, "body", [None])[-1], (ast.Return, ast.Raise))
    return not ends and any(
        isinstance(part, (ast.Await, ast.AsyncWith, ast.AsyncFor)) for part in ast.walk(statement)
    )


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether a handler awaits, and then raises again what it has caught without naming it."""
    waited = False
    for statement in handler.body:
        if waited and isinstance(statement, ast.Raise) and statement.exc is None:
            return True
        waited = waited or waits(statement)
    return False


@pytest.mark.parametrize("module", hook.MODULES)
def test_an_exception_that_is_raised_again_behind_an_await_is_named(module):
    # For a bare `raise` mypyc raises the error's cause, if it has one: a broken connection in place of a worker's death.
    handlers = [
        part
        for part in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(part, ast.ExceptHandler)
    ]
    assert [handler.lineno for handler in handlers if raises_again(handler)] == []


def test_a_bare_raise_behind_an_await_is_found():
    source = "try: pass\nexcept OSError as error:\n    await gone()\n    raise{}\n"
    named, unnamed = (
        ast.parse(source.format(suffix)).body[0].handlers[0] for suffix in (" error", "")
    )
    assert (raises_again(named), raises_again(unnamed)) == (False, True)


SAMPLE = '''
from collections.abc import Callable
from dataclasses import dataclass, field

@dataclass(frozen=True, slots=True)
class Whole:
    """One."""

    a: int
    """A first field."""
    b: str = "x" * 2
    c: list[int] = field(default_factory=list)
    d: Callable[[], int] = field(default=int, repr=False)
    e: int = field(init=False, compare=False, repr=False)
    f: int = field(default=3, init=False)
    g: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "e", self.a + 1)

@dataclass(slots=True, kw_only=True)
class Named:
    a: int = 1
    b: int

@dataclass(slots=True)
class Empty:
    """None."""
'''


def test_a_written_out_constructor_behaves_like_the_one_of_the_dataclass():
    (plain, adapted) = ({}, {})
    exec(SAMPLE, plain)
    exec(hook.adapted(SAMPLE), adapted)
    assert "def __init__(self, a: int" in hook.adapted(SAMPLE)
    for call in (
        "Whole(1)",
        "Whole(1, 'y', [2], d=str)",
        "Named(b=3)",
        "Named(a=2, b=3)",
        "Empty()",
    ):
        assert repr(eval(call, adapted)) == repr(eval(call, plain))
    assert eval("Whole(1) == Whole(1) and hash(Named) and Whole(1).c is not Whole(1).c", adapted)
    for call in ("Whole()", "Named(3)", "Whole(1, e=2)", "Empty(1)"):
        with pytest.raises(TypeError):
            eval(call, adapted)


CONSTANTS = """
import re
from typing import TypeVar

LONGEST = 3
_NAMES: dict[str, int] = {"A": 1}
KNOWN: Final = 4
KIND = TypeVar("KIND")
log = print

def other():
    LOCAL = 1
"""


def test_constants_are_marked_as_final_and_nothing_else_is():
    lines = hook.with_constants(CONSTANTS).splitlines()
    assert lines[1:3] == ["from typing import Final", "import re"]
    changed = [line for line in lines if line not in CONSTANTS.splitlines()]
    assert changed[1:] == ["LONGEST: Final = 3", '_NAMES: Final[dict[str, int]] = {"A": 1}']
    assert hook.with_constants("\n".join(lines)) == "\n".join(lines)


def test_a_line_of_a_docstring_that_begins_like_an_import_is_none():
    source = '"""Words\nfrom a page.\n"""\n\nLIMIT = 3\n'
    changed_source = hook.with_constants(source)
    assert changed_source == source.replace("LIMIT", "from typing import Final\nLIMIT: Final")
    assert hook.with_constants('"""Words."""\n') == '"""Words."""\n'


MEMBERS = """
from enum import Enum
from a import Colour, Other, run

class Own(Enum):
    RED = 1

@run(Colour.RED)
def paint(first: Colour = Colour.RED, *, ä: int) -> str:
    kept: Literal[Colour.RED] = Colour.RED
    match first, "ä", Colour.BLUE:
        case Colour.RED, _, _:
            return f"{Colour.RED}" if first is Colour.RED else "é", Colour.BLUE.value
    return Own.RED, Other.RED, Colour.names, self.Colour.RED

NONE = Colour.RED
"""


def test_members_of_imported_enums_are_read_once_and_only_where_functions_run():
    lines = hook.with_members(MEMBERS, {"Colour", "Own"}).splitlines()
    # `ä` is two bytes.
    assert lines[1:6] == [
        "from typing import Final",
        "from enum import Enum",
        "from a import Colour, Other, run",
        "_Colour_RED: Final = Colour.RED",
        "_Colour_BLUE: Final = Colour.BLUE",
    ]
    changed = [line.strip() for line in lines[6:] if line not in MEMBERS.splitlines()]
    assert changed == [
        "kept: Literal[Colour.RED] = _Colour_RED",
        'match first, "ä", _Colour_BLUE:',
        'return f"{Colour.RED}" if first is _Colour_RED else "é", _Colour_BLUE.value',
    ]
    assert hook.with_members(CONSTANTS, {"Colour"}) == CONSTANTS


def test_a_value_hashes_as_its_fields_do_and_in_a_wheel_by_machine_code():
    one, other = Service("p", "m"), Service("p", "m", created=7)
    assert (hash(one), {one: 1}[other]) == (hash(other), 1)
    assert hash(one) == hash(("p", "m", "", one.type, 0, 0))
    assert hash(one) != hash(Service("p", "m", abilities=1))
    # A function of the interpreter would take ten times as long.
    compiled = hook.Path(hashed.__file__).suffix == ".so"
    assert isinstance(Service.__hash__, FunctionType) != compiled


def test_compiled_modules_stand_beside_the_sources_in_a_wheel(monkeypatch):
    def compiled(root, folder):
        assert root == ROOT
        library = folder / "router/ledger.cpython-311-x86_64-linux-gnu.so"
        library.parent.mkdir(parents=True)
        library.touch()
        return folder

    monkeypatch.setattr(hook, "compiled", compiled)
    built = initialized("standard")
    assert list(built["force_include"].values()) == [
        "router/ledger.cpython-311-x86_64-linux-gnu.so"
    ]
    assert (built["pure_python"], built["infer_tag"]) == (False, True)


def test_without_a_compiler_a_wheel_has_the_sources_alone_and_says_so(monkeypatch, capsys):
    def compiled(root, folder):
        raise hook.CannotCompile("gcc broke")

    monkeypatch.setattr(hook, "compiled", compiled)
    built = initialized("standard")
    assert (built["force_include"], built["pure_python"]) == ({}, True)
    output = "".join(capsys.readouterr())
    assert "not compiled, since gcc broke" in output


@pytest.mark.parametrize(
    ("compiler", "include", "advice"),
    [
        ("no-such-cc -pthread", None, "apt install gcc"),
        ("cat", "/nowhere", "apt install python3-dev"),
    ],
)
def test_the_error_names_the_package_that_the_machine_lacks(
    monkeypatch, tmp_path, compiler, include, advice
):
    monkeypatch.setenv("CC", compiler)
    if include:
        monkeypatch.setattr(hook.sysconfig, "get_path", lambda _: include)
    with pytest.raises(hook.CannotCompile, match=advice):
        hook.compiled(ROOT, tmp_path)


def test_an_editable_install_runs_the_sources(monkeypatch):
    monkeypatch.setattr(hook, "compiled", None)
    assert initialized("editable")["pure_python"] is True


def written_by_pydantic():
    """Yield all classes that pydantic reads or writes here."""
    for package in (node, registry, router):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            for value in vars(import_module(module.name)).values():
                for item in value.values() if isinstance(value, dict) else (value,):
                    if isinstance(item, TypeAdapter):
                        yield from classes_in(item.core_schema)
                    elif isinstance(item, type) and issubclass(item, BaseModel):
                        yield from classes_in(item.__pydantic_core_schema__)


def classes_in(schema):
    if isinstance(schema, dict):
        if isinstance(kind := schema.get("cls"), type):
            yield kind
        schema = [*schema.values()]
    if isinstance(schema, list | tuple):
        for item in schema:
            yield from classes_in(item)


def test_no_class_that_pydantic_reads_or_writes_is_compiled():
    kinds = set(written_by_pydantic())
    assert UsageRow in kinds
    modules = {module.removesuffix(".py").replace("/", ".") for module in hook.MODULES}
    # Enumerations and named tuples stay ordinary classes.
    values = [kind for kind in kinds if not issubclass(kind, Enum | tuple)]
    assert [kind for kind in values if kind.__module__ in modules] == []
