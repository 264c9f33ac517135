"""Copy of the tree with additional files, in which commands and tests run: it shows what a new file alone adds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("bench", "deploy", "docs", "node", "registry", "router", "scripts", "tests")


def tree_with(copy: Path, files: dict[str, str]) -> Path:
    """Copy the sources and some additional files to an empty folder, and return it."""
    for folder in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, copy)
    for path, text in files.items():
        assert not (copy / path).exists(), path
        (copy / path).write_text(text)
    return copy


def run(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a tree."""
    command = [sys.executable, *arguments]
    # Fewer examples of properties suffice here: with what the tree has itself, they have been tried in full.
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = {**inherited, "PYTHONPATH": str(tree), **variables}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def held_to(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a tree."""
    return run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
