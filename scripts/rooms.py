"""Tables for docs/architecture.md: each folder and module with the first line of its docstring.

A folder is *core* if import-linter's contracts in pyproject.toml keep it from I/O, clocks, randomness and event loops.
"""

import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("registry", "router", "node")


def rooms_table(package: str) -> Iterator[str]:
    """Yield the table of one package: its folders, each with its modules, then its own modules."""
    yield "| path | purpose | modules |"
    yield "|---|---|---|"
    folders = [
        path for path in sorted((ROOT / package).iterdir()) if (path / "__init__.py").exists()
    ]
    for folder in folders:
        parts = sorted({_name(path) for path in folder.iterdir() if _is_part(path)})
        yield f"| `{_where(folder)}/`{_kind(folder)} | {_first_line(folder / '__init__.py')} | {', '.join(parts)} |"
    for module in sorted((ROOT / package).glob("*.py")):
        if not module.name.startswith("__"):
            yield f"| `{_where(module)}`{_kind(module)} | {_first_line(module)} | |"


def _is_part(path: Path) -> bool:
    return (path / "__init__.py").exists() or (path.suffix == ".py" and path.stem[0] != "_")


def _name(path: Path) -> str:
    return f"{path.name}/" if path.is_dir() else path.stem


def _where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _kind(path: Path) -> str:
    return " core" if _where(path).removesuffix(".py").replace("/", ".") in _core() else ""


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


@cache
def _core() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    groups = (c["source_modules"] for c in contracts if c["name"].startswith("the core of "))
    return frozenset(name for names in groups for name in names)


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    f"rooms.{package}": (lambda package=package: rooms_table(package)) for package in PACKAGES
}
