"""Check whether the busiest modules are machine code, as in a wheel that was built with a C compiler (scripts/compile.py)."""

from importlib.util import find_spec

SLOWER = "not compiled: requests take more CPU time (make install compiles, with a C compiler)"


def is_compiled() -> bool:
    """Return whether the busiest modules are machine code, without loading any of them."""
    spec = find_spec("router.ledger")
    return spec is not None and not (spec.origin or "").endswith(".py")
