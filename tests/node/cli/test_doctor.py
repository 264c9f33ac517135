"""`modelvine doctor`: set-ups that are broken on purpose, each named with its cause, and what stays out of a support file."""

import asyncio
import base64
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from node.auth.keys import Allowance
from node.cli.console.node_lookup import leave_trace
from node.secrets import identity
from registry.mesh.memory import MemoryNet
from tests import certificates
from tests.node.cli.stand_in import PEER
from tests.node.faces.assembly import TOKEN, World, node, settings_of
from tests.workers import openai_worker

ROOT = Path(__file__).parents[3]


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def look(modelvine):
    """Run `doctor` where no node answers, on free ports; return the findings that are not ok, by their check."""

    def look(*arguments, code=1):
        free = ("--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")
        options = (
            [option for option in free if free[0] not in arguments]
            if "--http" in arguments
            else free
        )
        nobody = ("--node", f"http://127.0.0.1:{closed_port()}")
        ended = modelvine("doctor", "--json", *nobody, *options, *arguments)
        assert ended.code == code, ended
        return bad(ended)

    return look


def bad(ended):
    rows = json.loads(ended.out)["findings"]
    assert all(row["do"] for row in rows if row["state"] != "ok")
    return {row["check"]: row for row in rows if row["state"] != "ok" and row["check"] != "clock"}


@pytest.fixture
async def alone():
    async with node(World(MemoryNet())) as one:
        yield one


async def at(running, modelvine, *arguments):
    url = f"http://{running.context.listening.http}"
    return await asyncio.to_thread(modelvine, "doctor", "--json", "--node", url, *arguments)


# Broken on purpose: no node runs.


def test_no_node_runs(look):
    findings = look()
    assert findings.keys() == {"node"}
    assert "Connection refused" in findings["node"]["what"]


def test_a_node_that_was_killed(look, data_dir):
    data_dir.mkdir(0o700)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    leave_trace(data_dir, url="http://127.0.0.1:1", peer=PEER)
    trace = data_dir / "node.json"
    trace.write_text(json.dumps(json.loads(trace.read_text()) | {"pid": ended.pid}))
    assert f"process {ended.pid} ended unexpectedly" in look()["node"]["what"]


def test_a_port_that_another_program_has(look):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        findings = look("--http", f"127.0.0.1:{port}", "--listen", "/ip4/127.0.0.1/tcp/0")
    row = findings[f"port {port}"]
    assert (row["state"], f"process {os.getpid()} (" in row["what"]) == ("fail", True)


def test_a_wrong_setting_is_reported_with_its_origin(look, monkeypatch):
    monkeypatch.setenv("MODELVINE_DRAIN_TIMEOUT", "soon")
    row = look()["settings"]
    assert "node.drain_timeout is 'soon' (from MODELVINE_DRAIN_TIMEOUT)" in row["what"]


def test_a_file_in_the_place_of_the_data_directory(look, data_dir):
    data_dir.touch()
    assert "is a file" in look()["data"]["what"]


def test_a_data_directory_that_is_read_only(look, data_dir):
    data_dir.mkdir(0o500)
    if os.access(data_dir, os.W_OK):
        pytest.skip("this user may write everywhere: setpriv --bounding-set=-all, or another user")
    assert "cannot write" in look()["data"]["what"]


def test_an_identity_that_others_can_read(look, data_dir):
    identity.load_or_create(data_dir)
    (data_dir / "identity.key").chmod(0o644)
    row = look()["identity"]
    assert ("can be read by other users" in row["what"], "chmod 600" in row["do"]) == (True, True)


def test_a_file_that_is_no_swarm_key(look, tmp_path):
    key = tmp_path / "swarm.key"
    key.write_text("nonsense")
    key.chmod(0o600)
    row = look("--swarm-key", str(key))["swarm key"]
    assert "is not a swarm key" in row["what"]
    assert "nonsense" not in str(row)


def test_redis_that_is_away(look):
    row = look("--store", f"redis://127.0.0.1:{closed_port()}/0")["store"]
    assert ("Connection refused" in row["what"], row["do"].startswith("start it")) == (True, True)


def test_a_database_of_a_newer_version(look, data_dir):
    data_dir.mkdir(0o700)
    with closing(sqlite3.connect(data_dir / "modelvine.db")) as database:
        database.execute("PRAGMA user_version = 9")
    assert look()["store"]["do"].startswith("upgrade this one")


def test_a_database_that_is_damaged(look, data_dir):
    data_dir.mkdir(0o700)
    (data_dir / "modelvine.db").write_bytes(b"no database " * 500)
    row = look()["store"]
    assert (row["what"].endswith("is damaged"), "restore a backup" in row["do"]) == (True, True)


def test_an_address_to_join_where_nothing_listens(look):
    row = look("--bootstrap", f"/ip4/127.0.0.1/tcp/{closed_port()}/p2p/{PEER}")["join"]
    assert "connection refused" in row["what"]


def test_a_certificate_that_has_expired(look, tmp_path):
    chain, key = certificates.write(tmp_path, days=-2)
    row = look("--tls-cert", str(chain), "--tls-key", str(key))["tls"]
    assert (row["state"], "expired 2 days ago" in row["what"]) == ("fail", True)


def test_too_few_open_files(data_dir):
    command = [sys.executable, "-m", "node", "doctor", "--json", "--data-dir", str(data_dir)]
    nobody = ["--node", f"http://127.0.0.1:{closed_port()}", "--http", "127.0.0.1:0"]
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh", *command, *nobody],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    (row,) = (r for r in json.loads(ended.stdout)["findings"] if r["check"] == "open files")
    assert (row["state"], "by the limit of 300" in row["what"]) == ("fail", True)


def test_a_mesh_that_anybody_may_use_is_a_warning(look):
    arguments = ("--http", "0.0.0.0:0", "--open", "everybody", "--listen", "/ip4/0.0.0.0/tcp/0")
    row = look(*arguments)["access"]
    assert (row["state"], "without a key" in row["what"]) == ("warn", True)


# Broken on purpose: a node runs.


def bad_there(ended):
    # The in-memory mesh of these tests has addresses that look public.
    return {check: row for check, row in bad(ended).items() if check != "access"}


async def test_a_healthy_node_has_no_bad_findings(alone, modelvine):
    ended = await at(alone, modelvine)
    assert (ended.code, bad_there(ended)) == (0, {})


async def test_a_worker_that_is_dead(alone, modelvine):
    async with openai_worker.running() as worker:
        await alone.register(worker)
    row = bad_there(await at(alone, modelvine))["workers"]
    assert row["state"] == "fail"
    assert row["what"].startswith(f"p/tiny: no answer from {worker.url}")
    assert row["what"].endswith("GET /v1/models: nothing listens there)")


async def test_a_worker_that_speaks_another_protocol(alone, modelvine):
    async with openai_worker.running() as worker:
        await alone.register(worker, dialect="tgi_http")
        row = bad_there(await at(alone, modelvine))["workers"]
    assert "speaks openai_http, but is registered as tgi_http" in row["what"]


async def test_a_worker_that_wants_a_key(alone, modelvine):
    async with openai_worker.running() as worker:
        worker.fail(status=401, list_status=401)
        await alone.register(worker)
        row = bad_there(await at(alone, modelvine))["workers"]
    assert (row["state"], "does not answer as openai_http" in row["what"]) == ("warn", True)


async def test_a_store_that_cannot_be_written(alone, modelvine):
    async def full(*_):
        from registry.errors import StoreUnavailable

        raise StoreUnavailable("m.db: No space left on device")

    alone.store.write = full
    row = bad_there(await at(alone, modelvine))["store"]
    assert (row["state"], "No space left" in row["what"]) == ("fail", True)


async def test_a_user_without_the_operators_role_is_told_what_was_not_checked(
    modelvine, monkeypatch
):
    async with node(World(MemoryNet()), settings_of()) as one:
        keys = await one.context.keys.create({"v": Allowance(role="viewer")})
        monkeypatch.setenv("MODELVINE_KEY", keys["v"])
        ended = await at(one, modelvine)
        assert (ended.code, bad_there(ended).keys()) == (0, {"node"})
        assert "were not checked" in bad_there(ended)["node"]["what"]


# For people, and for support.


def test_people_read_the_cause_and_what_to_do(modelvine):
    nobody = f"http://127.0.0.1:{closed_port()}"
    ended = modelvine("doctor", "--node", nobody, "--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0")  # fmt: skip
    lines = ended.out.splitlines()
    assert any(line.startswith("FAIL  node") for line in lines)
    assert any(line.strip().startswith("→ start it: modelvine up") for line in lines)
    assert lines[-1].startswith("1 fail, ")


def test_for_a_node_on_another_machine_this_machine_is_not_checked(modelvine):
    ended = modelvine("doctor", "--json", "--node", "http://nobody.invalid:6100")
    assert [row["check"] for row in json.loads(ended.out)["findings"]] == ["node"]


CANARIES = {
    "store": "canary-store-Pa55/word",
    "header": "canary-worker-header",
    "swarm": "5ca1ab1e" * 8,
    "prompt": "canary-prompt-of-ann",
    "user": "canary-user-zoe",
}


async def test_a_support_file_holds_no_secret(alone, modelvine, data_dir, tmp_path, monkeypatch):
    token, seed = identity.control_token(data_dir), identity.load_or_create(data_dir).seed.hex()
    swarm = tmp_path / "swarm.key"
    swarm.write_text(CANARIES["swarm"])
    swarm.chmod(0o600)
    keys = await alone.context.keys.create({CANARIES["user"]: Allowance(role="operator")})
    monkeypatch.setenv("MODELVINE_KEY", key := keys[CANARIES["user"]])
    monkeypatch.setenv("MODELVINE_STORE", f"redis://ann:{CANARIES['store'].replace('/', '%2F')}@127.0.0.1:1/0")  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    async with openai_worker.running() as worker:
        await alone.register(worker, headers={"authorization": f"Bearer {CANARIES['header']}"})
        body = {"model": "tiny", "messages": [{"role": "user", "content": CANARIES["prompt"]}]}
        headers = {"Authorization": f"Bearer {key}"}
        async with alone.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
        file = tmp_path / "support.tar.gz"
        ended = await at(alone, modelvine, "--bundle", str(file), "--swarm-key", str(swarm))
    assert ended.code == 0, ended
    with tarfile.open(file) as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}
    assert {name.partition("/")[2] for name in texts} == {
        "README.txt", "doctor.json", "settings.json", "versions.json", "status.json", "nodes.json", "catalog.json",
        "examination.json", "metrics.txt", "logs.json",
    }  # fmt: skip
    text = "\n".join(texts.values())
    # What belongs there is there, so the search below would find a secret.
    assert "p/tiny" in text or '"tiny"' in text
    assert str(tmp_path) not in text
    for secret in (
        token,
        seed,
        key,
        TOKEN,
        *CANARIES.values(),
        CANARIES["store"].replace("/", "%2F"),
    ):
        assert [form for form in forms(secret) if form in text] == [], secret


def forms(secret):
    raw = secret.encode()
    yield secret
    yield raw.hex()
    yield base64.b64encode(raw).decode().rstrip("=")[:-1]
    yield base64.b64encode(b"Bearer " + raw).decode().rstrip("=")[12:-1]


def test_a_support_file_is_written_where_no_node_runs_and_replaces_no_file(
    look, modelvine, tmp_path
):
    file = tmp_path / "support.tar.gz"
    assert look("--bundle", str(file)).keys() == {"node"}
    ended = modelvine("doctor", "--bundle", str(file), "--node", f"http://127.0.0.1:{closed_port()}")  # fmt: skip
    assert (ended.code, "exists already" in ended.err) == (2, True)
