"""Facts of this machine: files, ports and their holders, locks, certificates, stores; looking changes nothing."""

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from node.config.addresses import HostPort
from node.config.settings import NodeSettings, Settings
from node.diagnosis import facts
from node.diagnosis.machine import Directory, KernelClock
from node.runtime import hold_data_dir_lock
from node.secrets import identity
from node.secrets.secret_files import read_control_token, read_swarm_key
from registry.settings import MeshSettings
from tests import certificates


def settings(**node) -> Settings:
    return Settings(node=NodeSettings(**node))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_directory_is_inspected_and_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    found = facts.directory(missing)
    assert (found.exists, found.writable, missing.exists()) == (False, True, False)
    tmp_path.chmod(0o750)
    found = facts.directory(tmp_path)
    assert found == Directory(
        str(tmp_path), owner=os.geteuid(), user=os.geteuid(), mode=0o750, free=found.free
    )
    assert found.free
    file = tmp_path / "file"
    file.touch()
    assert facts.directory(file).is_directory is False
    assert facts.directory(file / "below").is_directory is False


def test_a_directory_without_write_permission_cannot_be_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere: setpriv --bounding-set=-all, or another user")
    try:
        assert facts.directory(tmp_path).writable is False
        assert facts.directory(tmp_path / "new").writable is False
    finally:
        tmp_path.chmod(0o700)


def test_secrets_are_inspected_and_not_created(tmp_path: Path) -> None:
    key, control_token = (identity.load, tmp_path), (read_control_token, tmp_path / "control.token")
    assert (facts.secret_problem(*key), facts.secret_problem(*control_token)) == ("", "")
    assert [*tmp_path.iterdir()] == []
    seed = identity.load_or_create(tmp_path).seed.hex()
    token = identity.control_token(tmp_path)
    assert (facts.secret_problem(*key), facts.secret_problem(*control_token)) == ("", "")
    assert facts.secrets_of(settings(), tmp_path) == [seed, token]
    (tmp_path / "identity.key").chmod(0o644)
    assert "can be read by other users" in facts.secret_problem(*key)
    (tmp_path / "control.token").write_text("short")
    assert "contains no complete token" in facts.secret_problem(*control_token)
    assert "there is no swarm key" in facts.secret_problem(read_swarm_key, tmp_path / "none")


def test_a_port_in_use_is_reported_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        made = Settings(
            node=NodeSettings(http=f"127.0.0.1:{port}", link=f"127.0.0.1:{closed_port()}"),
            mesh=MeshSettings(listen=("/ip4/127.0.0.1/tcp/0",)),
        )
        taken, free = facts.ports(made)
        assert "Address already in use" in taken.problem
        assert taken.holder.startswith(f"process {os.getpid()} (")
        assert free.problem == ""
        assert facts.holder_of(HostPort("127.0.0.1", closed_port())) == ""


def test_the_holder_of_a_data_directory_is_found_without_trying_its_lock(tmp_path: Path) -> None:
    assert facts.lock_holder(tmp_path) is None
    with hold_data_dir_lock(tmp_path):
        assert facts.lock_holder(tmp_path) == os.getpid()
        assert facts.absence(tmp_path, "refused", None).lock == os.getpid()
    assert facts.lock_holder(tmp_path) is None
    absence = facts.absence(tmp_path, "refused", 2**22 + 1)
    assert (absence.lock, absence.left_lives) == (None, False)
    assert facts.absence(tmp_path, "refused", os.getpid()).left_lives is True


def test_the_state_of_the_kernels_clock_is_read() -> None:
    clock = facts.kernel_clock()
    assert isinstance(clock, KernelClock)
    assert clock.error >= 0.0


def test_a_certificate_is_read_with_its_names(tmp_path: Path) -> None:
    chain, key = certificates.write(tmp_path, days=5)
    certificate = facts.certificate(str(chain), str(key))
    assert (certificate.problem, list(certificate.names)) == ("", ["models.example", "127.0.0.1"])
    assert 34 < (certificate.ends - certificate.begins) / 86_400 < 36
    key.chmod(0o644)
    assert "can be read by every user" in facts.certificate(str(chain), str(key)).problem
    chain.write_text("nothing")
    assert "contains no PEM certificate" in facts.certificate(str(chain), str(key)).problem
    assert "cannot be read" in facts.certificate(str(tmp_path / "none"), str(key)).problem


def test_bootstrap_addresses_are_dialled(tmp_path: Path) -> None:
    peer = identity.load_or_create(tmp_path).peer
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{peer}"
        gone = f"/ip4/127.0.0.1/tcp/{closed_port()}/p2p/{peer}"
        nobody = f"/dns4/nobody.invalid/tcp/1/p2p/{peer}"
        made = Settings(mesh=MeshSettings(bootstrap=(there, gone, nobody)))
        assert facts.bootstrap_dials(made) == [
            (there, ""),
            (gone, "connection refused"),
            (nobody, "the name does not resolve"),
        ]


def test_a_store_is_opened_as_by_a_node_and_a_missing_one_is_not_created(tmp_path: Path) -> None:
    assert facts.store_error(settings(), tmp_path) == ""
    assert [*tmp_path.iterdir()] == []
    file = tmp_path / "modelvine.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 9")
    assert "newer modelvine (layout 9" in facts.store_error(settings(), tmp_path)
    file.write_bytes(b"no database " * 500)
    assert "is damaged" in facts.store_error(settings(), tmp_path)
    assert facts.store_error(settings(store="memory"), tmp_path) == ""
    away = settings(store=f"redis://ann:canary@127.0.0.1:{closed_port()}/0")
    error = facts.store_error(away, tmp_path)
    assert "Connection refused" in error
    assert "canary" not in error
