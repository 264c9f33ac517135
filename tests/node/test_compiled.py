"""A node knows whether it is compiled, and says so."""

import sys
from importlib.machinery import ModuleSpec

import pytest

from node import compiled


@pytest.mark.parametrize(
    ("origin", "holds"),
    [("/x/router/ledger.py", False), ("/x/router/ledger.cpython-311-x86_64-linux-gnu.so", True)],
)
def test_a_node_is_compiled_if_its_module_is_found_as_an_extension_file(monkeypatch, origin, holds):
    monkeypatch.setattr(compiled, "find_spec", lambda name: ModuleSpec(name, None, origin=origin))
    assert compiled.is_compiled() is holds


def test_is_compiled_agrees_with_the_module_that_runs_here():
    import router.ledger

    assert sys.modules["router.ledger"] is router.ledger
    assert compiled.is_compiled() is not router.ledger.__file__.endswith(".py")
