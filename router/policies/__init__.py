"""Load-balancing policies: the order of candidates. One file per policy, found by its module name.

A policy module's docstring is its user documentation; the module defines `create() -> Policy` (`router/select/policy.py`).
"""

import ast
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import cast

from router.select.policy import Policy

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every policy there is: the modules of this folder."""


def load(name: str) -> Policy:
    """Make the policy of that name; raise a `ValueError` that lists the known names."""
    if name not in NAMES:
        raise ValueError(f"there is no policy {name!r}; known are: {', '.join(NAMES)}")
    return cast("Policy", import_module(f"{__name__}.{name}").create())


def summary(name: str) -> str:
    """Return the first paragraph of a policy's docstring, from its source: compiled modules have none."""
    doc = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text())) or ""
    return doc.partition("\n\n")[0].replace("\n", " ").strip()
