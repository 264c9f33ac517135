"""The modules in C, whether or not they are installed."""

import importlib
import importlib.machinery
import importlib.util
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import pytest

FOLDER = Path(__file__).parents[3] / "router/openai"

EventTexts = Callable[[bytes, bytes, bytes, tuple[bytes, ...]], tuple[bytes, int, int]]
Contains = Callable[[bytes, bytes], bool]
Names = tuple[str, ...]


class Scanner(Protocol):
    """The compiled module `members`."""

    def wanted(
        self, plain: Names, raw: Names, never: Names, inner_name: Names, inner: object, /
    ) -> object:
        """Return what `members` is to find."""

    def members(self, body: bytes, wanted: object, /) -> dict[str, Any] | None:
        """Return the wanted members."""

    def elements(
        self, array: bytes, wanted: object, most: int, /
    ) -> list[tuple[bytes, Any]] | None:
        """Return the elements."""


@pytest.fixture(scope="session")
def scanner(tmp_path_factory: pytest.TempPathFactory) -> Scanner:
    """Return the compiled module."""
    return cast("Scanner", compiled("members", tmp_path_factory.mktemp("members")))


@pytest.fixture(scope="session")
def event_texts(tmp_path_factory: pytest.TempPathFactory) -> EventTexts:
    """Return the compiled function."""
    found: EventTexts = compiled("event_texts", tmp_path_factory.mktemp("texts")).event_texts
    return found


@pytest.fixture(scope="session")
def contains(tmp_path_factory: pytest.TempPathFactory) -> Contains:
    """Return the compiled function."""
    found: Contains = compiled("event_texts", tmp_path_factory.mktemp("contains")).contains
    return found


def in_python(name: str) -> ModuleType:
    """Return a module's form in Python."""
    spec = importlib.util.spec_from_file_location("plain", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(name: str, folder: Path) -> ModuleType:
    """Return a module in C; compile it into a folder if it was not installed so."""
    module = importlib.import_module(f"router.openai.{name}")
    if not str(module.__file__).endswith(".py"):
        return module
    library = folder / f"{name}.so"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    include = f"-I{sysconfig.get_path('include')}"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    subprocess.run(
        [compiler, *flags, include, str(FOLDER / f"{name}.c"), "-o", str(library)], check=True
    )
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
