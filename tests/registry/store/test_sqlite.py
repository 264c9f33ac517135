"""SQLite beyond the contract: one private file that survives what happens to a process and to a disk."""

# ruff: noqa: ASYNC240 - small files of a test's own, where nothing else waits for the loop

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store import Delete, Put, Space, Store
from registry.store.sqlite import SCHEMA, SqliteStore
from tests.registry.store.conftest import Opening
from tests.registry.store.crash_writer import KEYS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "modelvine.db"


@pytest.fixture
def store(opened: Opening) -> Store:
    return opened("sqlite")


async def reopened(path: Path) -> dict[str, bytes]:
    """Read SELF with a new store, as after a restart."""
    store = SqliteStore(path)
    try:
        return dict(await store.read(Space.SELF))
    finally:
        await store.close()


async def test_what_was_written_is_there_after_a_restart(store: Store, path: Path) -> None:
    await store.write(Put(Space.SELF, "epoch", b"7"))
    await store.close()
    assert await reopened(path) == {"epoch": b"7"}


async def test_a_directory_is_refused_and_its_mode_stays(opened: Opening, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(StoreUnavailable, match="is not a file: choose a file"):
        await opened(f"sqlite:{tmp_path}").read(Space.SELF)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


async def test_a_relative_path_lies_in_the_data_directory(opened: Opening, tmp_path: Path) -> None:
    await opened("sqlite:other.db").write(Put(Space.SELF, "epoch", b"7"))
    assert await reopened(tmp_path / "data" / "other.db") == {"epoch": b"7"}


async def test_an_absolute_path_is_taken_as_it_is(opened: Opening, tmp_path: Path) -> None:
    await opened(f"sqlite:{tmp_path / 'x' / 'y.db'}").write(Put(Space.SELF, "epoch", b"7"))
    assert await reopened(tmp_path / "x" / "y.db") == {"epoch": b"7"}


async def test_only_their_owner_may_read_the_files_and_their_folder(
    store: Store, path: Path
) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    files = list(path.parent.iterdir())
    assert {file.name for file in files} == {f"{path.name}{end}" for end in ("", "-wal", "-shm")}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_file_that_other_users_could_read_is_closed_to_them(
    store: Store, path: Path
) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    await store.close()
    path.chmod(0o644)
    assert await reopened(path) == {"epoch": b"1"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_every_commit_is_synced_and_goes_through_the_log(store: Store, path: Path) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    synced = await asyncio.get_running_loop().run_in_executor(None, _pragma_of_a_new_store, path)
    assert synced == 2


def _pragma_of_a_new_store(path: Path) -> int:
    store = SqliteStore(path)
    database = store._opened()
    synced = database.execute("PRAGMA synchronous").fetchone()[0]
    asyncio.run(store.close())
    return int(synced)


async def test_an_empty_file_is_used_with_a_warning_for_its_content_may_be_lost(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert await store.read(Space.RECORDS) == {}
    assert [f"{path} is empty" in line for line in caplog.messages] == [True]


async def test_a_newer_layout_is_refused_and_left_alone(store: Store, path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("CREATE TABLE future (x)")
        newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"newer modelvine .*upgrade"):
        await store.read(Space.SELF)
    with pytest.raises(StoreUnavailable, match="newer modelvine"):
        await store.write(Put(Space.SELF, "epoch", b"1"))
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_left_alone(
    store: Store, path: Path
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE bookmarks (url)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        await store.write(Put(Space.SELF, "epoch", b"1"))
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_left_alone(
    store: Store, path: Path
) -> None:
    path.parent.mkdir()
    path.write_bytes(b"these are somebody's notes\n" * 500)
    with pytest.raises(StoreUnavailable, match=r"is damaged: stop the node, move the file away"):
        await store.read(Space.SELF)
    assert path.read_bytes() == b"these are somebody's notes\n" * 500


async def test_damage_inside_is_found_at_the_start_and_healed_by_moving_the_file(
    store: Store, path: Path
) -> None:
    await store.write(*(Put(Space.RECORDS, f"{n}", bytes([n]) * 3_000) for n in range(40)))
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(1).randbytes(40_000))
    damaged = path.read_bytes()
    again = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="is damaged"):
            await again.read(Space.RECORDS)
    assert path.read_bytes() == damaged
    for file in path.parent.iterdir():
        file.rename(file.with_suffix(f"{file.suffix}.away"))
    assert dict(await again.read(Space.RECORDS)) == {}
    await again.close()


async def test_values_that_a_node_could_not_have_written_are_left_out(
    store: Store, path: Path
) -> None:
    await store.write(Put(Space.SELF, "epoch", b"1"))
    with closing(sqlite3.connect(path)) as other, other:
        insert = "INSERT INTO entry VALUES ('self', ?, ?)"
        other.execute(insert, ("text", "not bytes"))
        other.execute(insert, ("number", 5))
        other.execute(insert, ("huge", b"v" * 600_000))
        other.execute(insert, (b"\xff\xfe", b"no text for a key"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}


async def test_a_place_that_cannot_hold_a_file_says_so_and_works_once_it_can(
    store: Store, path: Path
) -> None:
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(StoreUnavailable, match=r"modelvine\.db"):
        await store.write(Put(Space.SELF, "epoch", b"1"))
    path.parent.unlink()
    path.mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match=r"modelvine\.db"):
        await store.write(Put(Space.SELF, "epoch", b"1"))
    path.rmdir()
    await store.write(Put(Space.SELF, "epoch", b"2"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}


async def test_a_held_lock_ends_in_an_error_in_time_while_the_loop_runs_on(
    opened: Opening, path: Path
) -> None:
    store = opened("sqlite", timeout=0.2)
    await store.write(Put(Space.SELF, "epoch", b"1"))
    rounds = 0
    finished = asyncio.Event()

    async def watch() -> None:
        nonlocal rounds
        while not finished.is_set():
            await asyncio.sleep(0.01)
            rounds += 1

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.write(Put(Space.SELF, "epoch", b"2"))
            assert 0.15 < time.monotonic() - started < 4  # the library waits five seconds
            finished.set()
        assert rounds >= 2
        assert dict(await store.read(Space.SELF)) == {"epoch": b"1"}
        other.execute("ROLLBACK")
    await store.write(Put(Space.SELF, "epoch", b"3"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"3"}


async def test_two_stores_on_one_file_lose_no_write_of_each_other(opened: Opening) -> None:
    first, second = opened("sqlite", timeout=10), opened("sqlite", timeout=10)

    async def write(store: Store, name: str) -> None:
        for number in range(25):
            await store.write(Put(Space.SELF, f"{name}-{number}", b"v"))

    async with asyncio.TaskGroup() as group:
        group.create_task(write(first, "first"))
        group.create_task(write(second, "second"))
    assert len(await first.read(Space.SELF)) == 50


@pytest.mark.parametrize("attempt", range(10))
async def test_several_stores_may_lay_out_one_new_file_at_once(
    opened: Opening, attempt: int
) -> None:
    stores = [opened("sqlite", timeout=10) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for number, store in enumerate(stores):
            group.create_task(store.write(Put(Space.SELF, f"{number}", b"v")))
    assert len(await stores[0].read(Space.SELF)) == 4


async def test_a_full_disk_refuses_a_batch_whole_and_takes_the_next_when_there_is_room(
    path: Path,
) -> None:
    script = HERE / "full_disk.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(path),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert output.decode() == "3 1 ['later']\n"


def test_an_acknowledged_write_survives_kill_9_and_no_batch_is_half_written(path: Path) -> None:
    rng = random.Random(2)
    acknowledged = 0
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, str(HERE / "crash_writer.py"), str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                acknowledged = int(process.stdout.readline())
            process.kill()
            # What it acknowledged between the last line read and its death counts as well.
            for line in process.stdout.read().splitlines(keepends=True):
                acknowledged = int(line) if line.endswith(b"\n") else acknowledged
        stored, markers = asyncio.run(_state(path))
        assert len(set(stored.values())) == 1
        number = int(stored[KEYS[0]])
        assert acknowledged <= number <= acknowledged + 1
        assert markers == {f"marker-{number}": b""}


async def _state(path: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    store = SqliteStore(path)
    stored, markers = await store.read(Space.SELF), await store.read(Space.WORKERS)
    await store.close()
    return dict(stored), dict(markers)


async def test_a_call_that_was_given_up_leaves_the_store_usable(store: Store) -> None:
    writing = asyncio.ensure_future(store.write(Put(Space.SELF, "epoch", b"1")))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await store.write(Put(Space.SELF, "epoch", b"2"), Delete(Space.SELF, "other"))
    assert dict(await store.read(Space.SELF)) == {"epoch": b"2"}


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:///x.db", "sqlite3:x", "sqlitex"])
def test_a_wrong_url_is_explained(opened: Opening, url: str) -> None:
    with pytest.raises(ValueError, match=r"use `?(memory|sqlite)"):
        opened(url)
