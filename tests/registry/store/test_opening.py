"""Choice of the store by a setting, and loading of a store's library only when that store is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from registry.store import open_store
from registry.store.memory import MemoryStore
from registry.store.postgres import PostgresStore
from registry.store.redis import RedisStore
from registry.store.sqlite import SqliteStore
from tests.registry.store.conftest import ALICE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory", MemoryStore),
        ("sqlite", SqliteStore),
        ("sqlite:x.db", SqliteStore),
        ("redis://127.0.0.1:1/0", RedisStore),
        ("rediss://:secret@redis.example:6380/1?ssl_cert_reqs=required", RedisStore),
        ("unix:///run/redis.sock?db=1", RedisStore),
        ("postgresql://127.0.0.1:1/db", PostgresStore),
        (
            "postgres://ann:secret@one.example:5433,two.example/db?sslmode=verify-full",
            PostgresStore,
        ),
        ("postgresql:///db?host=/run/postgresql", PostgresStore),
    ],
)
def test_the_word_before_the_colon_chooses_the_store(url: str, kind: type, tmp_path: Path) -> None:
    assert isinstance(open_store(url, data_dir=tmp_path, node=ALICE), kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://me:secret@host/db",
        "opening",
        "limits",
        "memory:secret",
        "__init__",
        "../memory",
    ],
)
def test_an_unknown_store_is_refused_with_the_names_of_the_known_ones(
    url: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"use `?(memory|sqlite)") as refused:
        open_store(url, data_dir=tmp_path, node=ALICE)
    assert "me:secret" not in str(refused.value)


def test_a_node_without_a_shared_store_never_loads_its_library() -> None:
    script = (
        "import sys; from pathlib import Path; from registry.store import open_store;"
        "open_store('memory', data_dir=Path(), node='n'); open_store('sqlite', data_dir=Path(), node='n');"
        "sys.exit('redis' in sys.modules or 'psycopg' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=30, check=True)


def test_without_the_library_of_postgresql_the_error_says_what_to_install() -> None:
    script = (
        "import sys; from pathlib import Path; from registry.store import open_store;"
        "sys.modules['psycopg'] = None;"
        "open_store('postgresql://me:secret@host/db', data_dir=Path(), node='n')"
    )
    failed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, timeout=30, check=False, capture_output=True
    )
    stderr = failed.stderr.decode()
    assert stderr.splitlines()[-1] == (
        'ValueError: PostgreSQL as a store needs an extra: make extras, or pip install "modelvine[postgres]"'
    )
    assert "secret" not in stderr.splitlines()[-1]
