"""Laws of a provider's files: each is written whole or not at all, and half-written files of a dead process are removed."""

import pytest

from node.provide.database import migrate
from node.provide.files import (
    PIECE_BYTES,
    PIECES,
    SCHEMA,
    Files,
    FileTable,
    NoRoom,
    new_id,
    write_file,
)
from tests.node.provide.databases import SHARED


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    def broken():
        yield b"a\n"
        raise OSError("the disk is full")

    path = tmp_path / "out"
    with pytest.raises(OSError, match="full"):
        write_file(path, broken())
    assert list(tmp_path.iterdir()) == []
    assert write_file(path, []) == 0
    assert list(tmp_path.glob("out")) == []
    assert write_file(path, [b"a\n", b"b\n"]) == 4


@pytest.fixture
def opened(databases):
    """Return the files of a folder, as one of the providers that share a database has them."""
    made = []

    def opened(folder, **more):
        database = databases.open()
        migrate(database, (SCHEMA, PIECES))
        made.append(Files(folder, FileTable(database), **more))
        return made[-1]

    yield opened
    for files in made:
        files.close()


async def test_half_written_files_are_removed_and_all_files_together_have_a_bound(opened, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.part").write_bytes(b"x")
    files = opened(folder, keep=10)
    assert not (folder / "a.part").exists()
    files.path("a").write_bytes(b"12345678")
    await files.run_in_thread(lambda: files.table.add("a", 1, "a", "batch", files.path("a")))
    await files.require_room(2)
    with pytest.raises(NoRoom, match="delete some"):
        await files.require_room(3)


def test_a_file_that_cannot_be_added_leaves_no_bytes(opened, tmp_path):
    files = opened(tmp_path / "files")
    files.path("a").write_bytes(b"a")
    with pytest.raises(UnicodeEncodeError):
        files.add("a", 1, "\udcfc", "batch")
    assert not list(files.folder.iterdir())


@SHARED
def test_a_file_that_one_provider_has_stored_is_found_by_those_that_share_its_database(
    opened, tmp_path
):
    one, other = opened(tmp_path / "one"), opened(tmp_path / "other")
    for name, content in (("a", b"x" * (2 * PIECE_BYTES + 1)), ("b", b""), ("c", b"c")):
        one.path(name).write_bytes(content)
        one.table.add(name, 1, name, "batch", one.path(name))
        assert other.fetch(name).read_bytes() == content
    assert other.table.remove("a")
    assert one.table.find("a") is None
    other.path("c").unlink()
    other.fetch("c")
    assert sorted(path.name for path in other.folder.iterdir()) == ["b", "c"]


def test_ids_are_unique():
    assert len({new_id("file-") for _ in range(100)}) == 100
