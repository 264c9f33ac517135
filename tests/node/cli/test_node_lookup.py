"""Key that a command shows: the node's control token only to the node itself, unless MODELVINE_KEY is set."""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.cli.console.node_lookup import client, leave_trace, listening_users
from node.secrets import identity

LISTENS = """
import os, socket
os.setuid(65534)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
input()
"""


def token_shown(data_dir: Path, url: str) -> str:
    """Return the key that a command with this `--node` shows."""
    arguments = argparse.Namespace(node=url, **{"node.data_dir": str(data_dir)})
    return client(arguments).target.token


@contextmanager
def node_at(data_dir: Path, port: int) -> Iterator[str]:
    """Yield the URL at which `node.json` says that the node serves."""
    url = f"http://127.0.0.1:{port}"
    leave_trace(data_dir, url=url, peer="12D3KooWx")
    yield url


def test_the_control_token_is_shown_to_the_running_node_and_nobody_else(tmp_path: Path) -> None:
    token = identity.control_token(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with node_at(tmp_path, port) as url:
            assert token_shown(tmp_path, url) == token
            for other in (
                f"http://127.0.0.1:{port + 1}",
                f"http://127.0.0.2:{port}",
                "http://192.0.2.7:6100",
                "https://gpu7.example",
                "http://127.0.0.1.example",
            ):
                assert token_shown(tmp_path, other) == ""
    # Nobody listens there any more.
    with node_at(tmp_path, port) as url:
        assert token_shown(tmp_path, url) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_another_users_program_at_the_nodes_port_is_not_shown_the_token(tmp_path: Path) -> None:
    identity.control_token(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout is not None
        with node_at(tmp_path, int(stranger.stdout.readline())) as url:
            assert token_shown(tmp_path, url) == ""
        stranger.communicate("\n")


def test_a_key_in_the_environment_is_shown_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.control_token(tmp_path)
    monkeypatch.setenv("MODELVINE_KEY", "mv_user")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        node_at(tmp_path, listener.getsockname()[1]) as url,
    ):
        assert token_shown(tmp_path, url) == "mv_user"
    assert token_shown(tmp_path, "https://gpu7.example") == "mv_user"


def test_listeners_are_found_in_the_kernels_tables(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:17D4 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 5\n"
        "   1: 0100007F:17D4 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1001        0 6\n"
        "   2: 00000000:17D5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 7\n"
    )
    assert listening_users(6100, [table, tmp_path / "tcp6"]) == {1000}
    assert listening_users(1, [table]) == set()
    # As on macOS.
    assert listening_users(6100, [tmp_path / "tcp6"]) is None
