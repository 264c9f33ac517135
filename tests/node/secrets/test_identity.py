import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.errors import SecretRefused
from node.secrets import identity, secret_files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_node_keeps_its_identity_over_restarts(tmp_path: Path) -> None:
    first = identity.load_or_create(tmp_path / "data")
    assert identity.load_or_create(tmp_path / "data").peer == first.peer


def test_the_key_and_its_directory_are_accessible_to_their_owner_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "deep" / "data"
    identity.load_or_create(data_dir)
    identity.control_token(data_dir)
    assert mode(data_dir / "identity.key") == mode(data_dir / "control.token") == 0o600
    assert mode(data_dir) == 0o700


def test_the_key_file_holds_the_seed_as_one_line_of_hexadecimal(tmp_path: Path) -> None:
    made = identity.load_or_create(tmp_path)
    assert (tmp_path / "identity.key").read_text() == made.seed.hex() + "\n"


@pytest.mark.parametrize("others", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_read_or_write_is_refused_with_the_remedy(
    tmp_path: Path, others: int
) -> None:
    identity.load_or_create(tmp_path)
    key = tmp_path / "identity.key"
    key.chmod(others)
    with pytest.raises(SecretRefused, match=f"chmod 600 {key}"):
        identity.load_or_create(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab " * 32, "x" * 5000, "é" * 64]
)
def test_a_file_that_is_no_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    key = tmp_path / "identity.key"
    key.touch(mode=0o600)
    key.write_text(content)
    with pytest.raises(SecretRefused):
        identity.load_or_create(tmp_path)
    assert key.read_text() == content


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    first = identity.create(tmp_path)
    with pytest.raises(FileExistsError):
        identity.create(tmp_path)
    assert identity.load(tmp_path).peer == first.peer


def test_processes_that_start_together_agree_on_one_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        peers = {made.peer for made in threads.map(identity.load_or_create, [tmp_path] * 16)}
    assert len(peers) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["identity.key"]


def test_the_control_token_is_made_once_and_random(tmp_path: Path) -> None:
    first = identity.control_token(tmp_path / "a")
    assert identity.control_token(tmp_path / "a") == first
    assert identity.control_token(tmp_path / "b") != first
    assert len(first) >= 32


@pytest.mark.parametrize("content", ["", "short", "two words " * 10])
def test_an_invalid_control_token_is_refused(tmp_path: Path, content: str) -> None:
    token = tmp_path / "control.token"
    token.touch(mode=0o600)
    token.write_text(content)
    with pytest.raises(SecretRefused, match="remove it"):
        identity.control_token(tmp_path)


def test_a_directory_in_the_place_of_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity.key").mkdir()
    with pytest.raises(SecretRefused):
        identity.load(tmp_path)


def test_a_new_swarm_key_can_be_read_back_and_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "swarm.key"
    secret_files.write_new_swarm_key(path)
    key = secret_files.read_swarm_key(path)
    assert len(bytes.fromhex(key)) == 32
    assert mode(path) == 0o600
    with pytest.raises(FileExistsError):
        secret_files.write_new_swarm_key(path)
    assert secret_files.read_swarm_key(path) == key


def test_the_three_line_form_of_a_swarm_key_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "swarm.key"
    secret_files.write_new(path, "/key/swarm/psk/1.0.0/\n/base16/\n" + "AB" * 32 + "\n")
    assert secret_files.read_swarm_key(path) == "ab" * 32


@pytest.mark.parametrize(
    "content",
    [
        "",
        "ab" * 31,
        "zz" * 32,
        "/key/swarm/psk/1.0.0/\n/base64/\n" + "ab" * 32,
        "one\n" + "ab" * 32,
    ],
)
def test_text_that_is_no_swarm_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "swarm.key"
    secret_files.write_new(path, content)
    with pytest.raises(SecretRefused, match="64 hexadecimal"):
        secret_files.read_swarm_key(path)


def test_a_missing_swarm_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SecretRefused, match="modelvine key swarm"):
        secret_files.read_swarm_key(tmp_path / "swarm.key")


AS_A_SERVICE = """
import os, sys
from pathlib import Path
from node.errors import SecretRefused
from node.secrets import secret_files
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(secret_files.read(Path(path)))
    except SecretRefused:
        print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT CAN HAND A SECRET TO ANOTHER USER")
def test_a_secret_of_root_may_be_read_through_its_group_as_services_do() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        # Of root: readable by its group; readable by all users; writable by its group. Of the reader: readable by its group.
        cases = [(0, 0o440), (0, 0o444), (0, 0o660), (65534, 0o440)]
        for number, (owner, rights) in enumerate(cases):
            path = Path(folder, str(number))
            path.write_text("secret")
            os.chown(path, owner, 65534)
            path.chmod(rights)
        names = [str(Path(folder, str(number))) for number in range(len(cases))]
        read = subprocess.run(
            [sys.executable, "-c", AS_A_SERVICE, *names], capture_output=True, text=True, check=True
        )
    assert read.stdout.split() == ["secret", "refused", "refused", "refused"]
