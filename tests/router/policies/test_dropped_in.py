"""A policy is one new file: found, documented and held to the contract without an edit elsewhere, shown on a copy of the tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COPIED = ("bench", "docs", "node", "registry", "router", "scripts", "tests")
NAME = "shortest_name"
SAYS = "Whoever has the shortest id comes first, for the fun of it."

POLICY = f'''"""{SAYS}

Ids are as long as each other, so this is no good policy.
"""

from collections.abc import Sequence

from router.candidates import Candidate
from router.policies import Chance, Policy
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
    copy = tmp_path_factory.mktemp("tree")
    for folder in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, copy)
    (copy / "router" / "policies" / f"{NAME}.py").write_text(POLICY)
    return copy


def run(tree: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    environment = {**os.environ, "PYTHONPATH": str(tree), **variables}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def held_to(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)


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
