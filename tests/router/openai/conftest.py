"""The compiled scanner of members, whether or not it is installed."""

import importlib.machinery
import importlib.util
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from router.openai import members as installed

SOURCE = Path(__file__).parents[3] / "router/openai/members.c"

Members = Callable[
    [bytes, tuple[str, ...], tuple[str, ...], tuple[str, ...]], dict[str, Any] | None
]


@pytest.fixture(scope="session")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """Return the compiled function; compile it if it was not installed so."""
    module: ModuleType = installed
    if str(module.__file__).endswith(".py"):
        made = tmp_path_factory.mktemp("members") / "members.so"
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        include = f"-I{sysconfig.get_path('include')}"
        flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
        subprocess.run([compiler, *flags, include, str(SOURCE), "-o", str(made)], check=True)
        loader = importlib.machinery.ExtensionFileLoader("members", str(made))
        spec = importlib.util.spec_from_loader("members", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    found: Members = module.members
    return found
