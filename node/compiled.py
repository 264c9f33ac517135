"""Check whether the busiest modules are machine code, as in a wheel that was built with a C compiler (scripts/compile.py)."""

from importlib.util import find_spec

SLOWER = "not compiled: requests take more CPU time (make install compiles, with a C compiler)"


def is_compiled() -> bool:
    """Return whether the busiest modules are machine code, without loading any of them."""
    found = find_spec("router.ledger")
    return found is not None and not (found.origin or "").endswith(".py")
