"""A policy is one new file: found, documented and held to the contract without an edit elsewhere, shown on a copy of the tree."""

from pathlib import Path

import pytest

from tests.copied import held_to, run, tree_with

NAME = "shortest_name"
SAYS = "Whoever has the shortest id comes first, for the fun of it."

POLICY = f'''"""{SAYS}

Ids are as long as each other, so this is no good policy.
"""

from collections.abc import Sequence

from router.select.candidates import Candidate
from registry.clock import Chance
from router.policies import Policy
from router.requests import Request


class ShortestName(Policy):
    """Looks at ids alone."""

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return the candidates by the length of their ids."""
        return sorted(candidates, key=lambda candidate: len(candidate.node))

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        """Name the length."""
        return f"its id has {{len(candidate.node)}} characters"


def create() -> ShortestName:
    """Make the policy."""
    return ShortestName()
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with one file more."""
    policy = {f"router/policies/{NAME}.py": POLICY}
    return tree_with(tmp_path_factory.mktemp("tree"), policy)


def test_it_is_held_to_the_contract(tree: Path) -> None:
    contract = "tests/router/policies/test_contract.py"
    held = held_to(tree, "-k", NAME, contract)
    assert held.returncode == 0, held.stdout
    file = tree / "router" / "policies" / "forgetful.py"
    file.write_text(POLICY.replace("sorted(candidates,", "sorted(candidates[1:],"))
    law = "test_everybody_is_ordered_once_and_nobody_is_invented"
    refused = held_to(tree, f"{contract}::{law}[{file.stem}]")
    file.unlink()
    assert refused.returncode == 1, refused.stdout


def test_it_is_listed_with_what_its_docstring_says_first(tree: Path) -> None:
    listed = run(tree, "-m", "node", "config", "policies")
    assert f"{NAME}  {SAYS}" in listed.stdout, listed.stderr
    written = run(tree, "scripts/tables.py", "--write")
    assert f"| `{NAME}` | {SAYS} |" in (tree / "docs/configuration.md").read_text(), written.stderr


def test_it_may_be_chosen(tree: Path) -> None:
    shown = run(tree, "-m", "node", "config", "policies", MODELVINE_ROUTER_POLICY=NAME)
    assert f"*  {NAME}" in shown.stdout, shown.stderr


def test_the_laws_over_the_code_hold_with_it(tree: Path) -> None:
    run(tree, "scripts/tables.py", "--write")
    kept = held_to(
        tree, "-k", "file or generated", "tests/test_architecture.py", "tests/test_docs.py"
    )
    assert kept.returncode == 0, kept.stdout
