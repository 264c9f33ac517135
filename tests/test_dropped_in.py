"""A dialect is one new file, as docs/extending.md has it, and so is a policy: both are dropped into one copy of the tree."""

import re
from pathlib import Path

import pytest

from tests.copied import ROOT, held_to, run, tree_with

PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
DIALECT, STUB = "router/dialects/parrot_http.py", "tests/workers/parrot_worker.py"


POLICY = "shortest_name"
SAYS = "Whoever has the shortest id comes first, for the fun of it."

SHORTEST_NAME = f'''"""{SAYS}

Ids are as long as each other, so this is no good policy.
"""

from collections.abc import Sequence

from registry.clock import RandomSource
from router.select.policy import Policy
from router.requests import Request
from router.select.candidates import Candidate


class ShortestName(Policy):
    """Looks at ids alone."""

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
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


POLICY_FILE = f"router/policies/{POLICY}.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the files of the page, and the policy."""
    return tree_with(tmp_path_factory.mktemp("tree"), {**FILES, POLICY_FILE: SHORTEST_NAME})


def test_the_page_has_one_file_for_the_dialect_and_one_for_its_stub() -> None:
    assert set(FILES) == {DIALECT, STUB}
    assert len(FILES[DIALECT].splitlines()) <= 90


def test_a_chat_and_a_stream_go_through_the_dialect(tree: Path) -> None:
    result = held_to(tree, "tests/router/dialects/exercise.py")
    assert result.returncode == 0, result.stdout
    assert "16 passed" in result.stdout  # on both event loops


def test_the_dialect_is_held_to_the_contract(tree: Path) -> None:
    contract = "tests/router/dialects/test_contract.py"
    result = held_to(tree, "-k", "parrot", contract)
    assert result.returncode == 0, result.stdout
    file = tree / DIALECT
    law = f"{contract}::test_a_worker_that_dies_in_mid_stream_never_ends_it_silently"
    # With this change the first event ends the stream.
    file.write_text(FILES[DIALECT].replace("over=reason is not None", "over=True"))
    refused = held_to(tree, "-k", "parrot", law)
    file.write_text(FILES[DIALECT])
    assert refused.returncode == 1, refused.stdout


def test_the_tables_of_the_pages_list_the_dialect(tree: Path) -> None:
    written = run(tree, "scripts/tables.py", "--write")
    page = (tree / "docs/dialects.md").read_text()
    assert "| `POST /say` | chats, whole and in streams | none |" in page, written.stderr
    assert "Parrot: chat" in page


def test_the_laws_over_the_code_hold_with_the_dialect_and_the_policy(tree: Path) -> None:
    run(tree, "scripts/tables.py", "--write")
    laws = ("tests/test_architecture.py", "tests/test_docs.py", "tests/test_seeds.py")
    result = held_to(tree, "-k", "file or generated or endpoint or protocol", *laws)
    assert result.returncode == 0, result.stdout
    for arguments in (["check"], ["format", "--check"]):
        ruff = run(tree, "-m", "ruff", *arguments, *FILES)
        assert ruff.returncode == 0, ruff.stdout


def test_the_policy_is_held_to_the_contract(tree: Path) -> None:
    contract = "tests/router/policies/test_contract.py"
    result = held_to(tree, "-k", POLICY, contract)
    assert result.returncode == 0, result.stdout
    file = tree / "router" / "policies" / "forgetful.py"
    file.write_text(SHORTEST_NAME.replace("sorted(candidates,", "sorted(candidates[1:],"))
    law = "test_the_order_holds_every_candidate_exactly_once"
    refused = held_to(tree, f"{contract}::{law}[{file.stem}]")
    file.unlink()
    assert refused.returncode == 1, refused.stdout


def test_the_policy_is_listed_with_what_its_docstring_says_first_and_may_be_chosen(
    tree: Path,
) -> None:
    result = run(tree, "-m", "node", "config", "policies", MODELVINE_ROUTER_POLICY=POLICY)
    assert f"*  {POLICY}  {SAYS}" in result.stdout, result.stderr
    written = run(tree, "scripts/tables.py", "--write")
    assert f"| `{POLICY}` | {SAYS} |" in (tree / "docs/configuration.md").read_text(), (
        written.stderr
    )


def test_the_parrot_is_no_part_of_the_tree() -> None:
    assert not [path for path in FILES if (ROOT / path).exists()]
