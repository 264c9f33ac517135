"""Folders in which a node and a LocalAI backend exchange files."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from router.dialects.localai_grpc.files import (
    MAX_MADE_BYTES,
    Folder,
    remove_stale_folders,
    shared_folder,
)
from router.errors import (
    WorkerFailed,
)
from tests.router.dialects.localai_grpc.asks import left
from tests.workers.localai_worker import PNG


def make_traps(shared: Folder, secret: Path) -> None:
    """Make entries that are not plain files with content: a link, a folder, an empty file and a pipe."""
    secret.write_bytes(PNG)
    Path(shared.path_for("link")).symlink_to(secret)
    Path(shared.path_for("folder")).mkdir()
    Path(shared.path_for("empty")).touch()
    os.mkfifo(shared.path_for("pipe"))


def make(shared: Folder, name: str, size: int) -> None:
    """Make a file of `size` bytes."""
    with Path(shared.path_for(name)).open("wb") as file:
        file.truncate(size)


class TestAFolder:
    async def test_gives_back_plain_files_only(self, tmp_path: Path) -> None:
        async with shared_folder() as shared:
            make_traps(shared, tmp_path / "secret")
            for name in ("link", "folder", "empty", "missing", "pipe"):
                with pytest.raises(WorkerFailed):
                    await shared.read_and_remove(name)

    async def test_gives_back_files_up_to_a_total_size(self) -> None:
        async with shared_folder() as shared:
            for name, size in (("a", MAX_MADE_BYTES - 1), ("b", 1), ("c", 1)):
                make(shared, name, size)
            assert len(await shared.read_and_remove("a")) == MAX_MADE_BYTES - 1
            assert len(await shared.read_and_remove("b")) == 1
            with pytest.raises(WorkerFailed):
                await shared.read_and_remove("c")

    async def test_takes_a_name_once(self) -> None:
        async with shared_folder() as shared:
            await shared.write("a", b"1")
            with pytest.raises(WorkerFailed, match="no file can be passed"):
                await shared.write("a", b"2")

    async def test_that_cannot_be_made_fails_the_attempt(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        with pytest.raises(WorkerFailed, match="no file can be passed"):
            async with shared_folder():
                pass

    async def test_of_a_killed_process_is_removed_and_one_in_use_is_kept(
        self, shared: Path
    ) -> None:
        async with shared_folder() as used:
            abandoned = abandon(shared)
            remove_stale_folders()
            assert not any(path == abandoned for path, _ in left(shared))
            await used.write("a", b"1")
            remove_stale_folders()
            assert await used.read_and_remove("a") == b"1"


def abandon(shared: Path) -> Path:
    """Have another process make a folder, put a file there and die; return the folder."""
    script = f"""
import asyncio, os, tempfile
tempfile.tempdir = {str(shared)!r}
from router.dialects.localai_grpc.files import shared_folder
async def main():
    async with shared_folder() as made:
        path = await made.write("recording", b"secret")
        print(os.path.dirname(path), flush=True)
        os._exit(9)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 9, done.stderr
    path = Path(done.stdout.decode().strip())
    assert (path / "recording").exists()
    return path
