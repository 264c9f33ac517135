"""In which order are candidates tried? One file per policy, found by its module name.

A policy module defines `order(candidates, random)`: it returns all candidates, the first to be tried first. It knows
nothing of dialling. `random` returns a float in [0, 1) and is the policy's only source of chance.
"""

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from router.candidates import Candidate

Policy = Callable[[Sequence[Candidate], Callable[[], float]], Sequence[Candidate]]

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every policy there is: the modules of this folder."""


def load(name: str) -> Policy:
    """Return the policy of that name; raise `ValueError` that lists the names there are."""
    if name not in NAMES:
        raise ValueError(f"no policy is called {name!r}; there are: {', '.join(NAMES)}")
    return cast("Policy", import_module(f"{__name__}.{name}").order)
