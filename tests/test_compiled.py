"""What is compiled by `make compiled` still stands as its script expects."""

import ast

import pytest

from scripts.compile import HERE, MODULES, ROOT, Failed, adapted, copy


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_adapted_and_nothing_is_left_that_mypyc_refuses(module):
    made = adapted(module, (ROOT / module).read_text())
    ast.parse(made)
    assert "@value_class" not in made
    assert "slots=True" not in made
    assert "self._thread" not in made


def test_only_compiled_modules_are_adapted():
    assert set(HERE) <= set(MODULES)


def test_a_text_that_is_gone_is_named():
    with pytest.raises(
        Failed, match=r"router/http/connection\.py has no 'del self\._parser' any more"
    ):
        adapted("router/http/connection.py", "import asyncio\n")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(Failed, match=r"letter\.txt"):
        copy(tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear"
