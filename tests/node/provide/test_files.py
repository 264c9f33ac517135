"""Laws of a provider's files: each is written whole or not at all, and what a dead process left half is removed."""

import pytest

from node.provide.database import connect
from node.provide.files import SCHEMA, Files, FileTable, NoRoom, new_id, write_file


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    def broken():
        yield b"a\n"
        raise OSError("the disk is full")

    path = tmp_path / "out"
    with pytest.raises(OSError, match="full"):
        write_file(path, broken())
    assert not path.exists()
    assert write_file(path, []) == 0
    assert list(tmp_path.glob("out")) == []
    assert write_file(path, [b"a\n", b"b\n"]) == 4


async def test_what_was_half_is_removed_and_all_files_have_a_bound(tmp_path):
    (tmp_path / "a.part").write_bytes(b"x")
    database = connect(tmp_path / "db", SCHEMA)
    files = Files(tmp_path, FileTable(database), keep=10)
    assert not (tmp_path / "a.part").exists()
    await files.run_in_thread(lambda: files.table.add("a", 1, 8, "a", "batch"))
    await files.require_room(2)
    with pytest.raises(NoRoom, match="delete some"):
        await files.require_room(3)
    files.close()
    database.close()


def test_an_id_is_never_the_same():
    assert len({new_id("file-") for _ in range(100)}) == 100
