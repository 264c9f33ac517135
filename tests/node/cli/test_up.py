"""`modelvine up` in real processes: the error of a node that cannot start, and the first line of one that can."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.secrets.secret_files import write_new

ROOT = Path(__file__).parents[3]
ANY_PLACE = {"--http": "127.0.0.1:0", "--listen": "/ip4/127.0.0.1/tcp/0", "--store": "memory"}


def command(home: Path, **options: str) -> list[str]:
    flags = ANY_PLACE | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    arguments = [argument for pair in flags.items() for argument in pair]
    return [sys.executable, "-m", "node", "up", "--data-dir", str(home / "data"), *arguments]


def refused(home: Path, **options: str) -> str:
    """Return the one line that a node writes when it cannot start."""
    done = subprocess.run(
        command(home, **options),
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


@contextmanager
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("flag", "place"), [("http", "127.0.0.1:{}"), ("link", "127.0.0.1:{}"), ("listen", "/ip4/127.0.0.1/tcp/{}")]
)  # fmt: skip
def test_a_taken_port_is_named_with_the_flag_that_sets_another(
    tmp_path: Path, flag: str, place: str
) -> None:
    with taken() as port:
        line = refused(tmp_path, **{flag: place.format(port)})
    assert place.format(port) in line
    assert f"(--{flag})" in line
    assert "Address already in use; another program does" in line


def test_a_taken_port_of_grpc_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken() as port:
        monkeypatch.setenv("MODELVINE_FACES_REMOTELLM", f"127.0.0.1:{port}")
        line = refused(tmp_path)
    assert f"cannot listen on 127.0.0.1:{port}: another program does" in line
    assert "(faces.remotellm)" in line


def test_an_address_of_another_machine_is_reported_as_one(tmp_path: Path) -> None:
    line = refused(tmp_path, listen="/ip4/192.0.2.1/tcp/0")
    assert (
        "this machine does not have this address: use one of its own with mesh.listen (--listen)"
        in line
    )


@pytest.mark.parametrize(("scheme", "name"), [("redis", "Redis"), ("postgresql", "PostgreSQL")])
def test_a_shared_store_that_is_down_is_named_with_the_setting(
    tmp_path: Path, scheme: str, name: str
) -> None:
    for host in ("127.0.0.1", "localhost"):
        with taken() as port:
            pass
        line = refused(tmp_path, store=f"{scheme}://{host}:{port}/0")
        assert re.search(rf"{name} at {host}:{port}(/0)?: Connection refused; ", line)
        assert "node.store (--store)" in line


@pytest.mark.parametrize("content", ["nope", "\xff\x00junk", ""])
def test_the_error_about_an_invalid_key_file_says_what_it_must_contain(
    tmp_path: Path, content: str
) -> None:
    swarm, identity = tmp_path / "swarm.key", tmp_path / "data" / "identity.key"
    write_new(swarm, content)
    line = refused(tmp_path, swarm_key=str(swarm))
    assert f"{swarm} is not a swarm key: it must contain 64 hexadecimal characters" in line
    assert "modelvine key swarm" in line
    identity.parent.mkdir(mode=0o700, exist_ok=True)
    write_new(identity, content)
    assert (
        f"{identity} is not an identity key: it must contain 64 hexadecimal characters"
        in refused(tmp_path)
    )


def test_a_file_where_the_data_directory_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    line = refused(tmp_path)
    assert f"the directory {tmp_path / 'data'} cannot be created: a file has this name" in line
    assert "--data-dir DIR" in line


def test_a_node_first_says_that_it_is_ready_and_nothing_about_open_files(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["bash", "-c", 'ulimit -n 20000; exec "$@"', "up", *command(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as node:
        assert node.stdout is not None
        first = node.stdout.readline()
        node.send_signal(signal.SIGTERM)
        rest = node.stdout.read()
    assert node.returncode == 0
    assert first.startswith("ready http=http://127.0.0.1:")
    assert "open files" not in rest
