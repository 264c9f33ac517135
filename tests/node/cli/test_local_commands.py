import json
import stat
from pathlib import Path

import pytest

from node.config.sources import KEYS
from node.runtime import hold_data_dir_lock
from node.secrets.secret_files import read_swarm_key
from router import policies
from tests.node.cli.conftest import Modelvine


def test_config_show_lists_every_setting_with_its_origin(
    modelvine: Modelvine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modelvine.toml").write_text("[mesh]\ndegree = 5")
    monkeypatch.setenv("MODELVINE_STORE", "redis://:hush@db/0")
    payload = json.loads(modelvine("config", "show", "--json", "--profile", "lan").out)
    assert set(payload) == set(KEYS)
    assert payload["mesh.degree"] == {"value": 5, "origin": "modelvine.toml"} | {
        "origin": str(tmp_path / "modelvine.toml")
    }
    assert payload["mesh.listen"]["origin"] == "profile lan"
    assert payload["node.profile"] == {"value": "lan", "origin": "--profile"}
    assert payload["node.store"] == {"value": "redis://:***@db/0", "origin": "MODELVINE_STORE"}


def test_config_policies_says_what_each_policy_does_and_marks_the_one_in_use(
    modelvine: Modelvine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELVINE_ROUTER_POLICY", "session")
    lines = modelvine("config", "policies").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("*")] == ["*"]
    assert any(line.startswith("*  session") for line in lines)
    assert len(lines) == len(policies.NAMES) + 1
    payload = json.loads(modelvine("config", "policies", "--json").out)
    assert payload["policy"] == "session"
    assert payload["policies"] == {name: policies.summary(name) for name in policies.NAMES}


def test_config_show_for_people_is_a_table(modelvine: Modelvine) -> None:
    lines = modelvine("config", "show").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert len(lines) == len(KEYS) + 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--http", "0.0.0.0:1"),
            "node.http is '0.0.0.0:1' (from --http): it can be reached by other machines",
        ),
        (
            ("--listen", "nowhere"),
            "mesh.listen is 'nowhere' (from --listen): it must look like /ip4/",
        ),
        (("--drain-timeout", "soon"), "node.drain_timeout is 'soon' (from --drain-timeout)"),
        (("--config", "absent.toml"), "the settings file absent.toml cannot be read"),
        (
            ("--swarm-key", "absent.key"),
            "node.swarm_key is 'absent.key' (from --swarm-key): it names no file",
        ),
    ],
)
def test_up_names_a_wrong_setting_before_anything_starts(
    modelvine: Modelvine, data_dir: Path, words: tuple[str, str], sentence: str
) -> None:
    ended = modelvine("up", *words)
    assert ended.code == 2
    assert sentence in ended.err
    assert ended.out == ""
    assert not data_dir.exists()


def test_up_refuses_an_unknown_option(modelvine: Modelvine) -> None:
    assert modelvine("up", "--threads=2").code == 2


def test_a_node_has_at_least_one_process(modelvine: Modelvine) -> None:
    ended = modelvine("up", "--workers=0")
    assert (ended.code, "node.workers" in ended.err) == (2, True)


def test_two_nodes_never_share_a_data_directory(modelvine: Modelvine, data_dir: Path) -> None:
    data_dir.mkdir()
    with hold_data_dir_lock(data_dir):
        ended = modelvine("up", "--http", "127.0.0.1:0")
    assert ended.code == 1
    assert "another node already runs with the data directory" in ended.err
    with hold_data_dir_lock(data_dir):
        pass


def test_the_key_is_made_once_and_shown_by_its_peer_id(
    modelvine: Modelvine, data_dir: Path
) -> None:
    payload = json.loads(modelvine("key", "new", "--json").out)
    assert payload["peer"].startswith("12D3KooW")
    assert payload["peer"] in modelvine("key", "show").out
    again = modelvine("key", "new")
    assert (again.code, "move it away first" in again.err) == (1, True)
    assert json.loads(modelvine("key", "show", "--json").out) == payload
    seed = (data_dir / "identity.key").read_text().strip()
    assert seed not in modelvine("key", "show").out


def test_showing_a_key_that_is_not_there_says_how_to_get_one(modelvine: Modelvine) -> None:
    ended = modelvine("key", "show")
    assert (ended.code, "modelvine key new" in ended.err) == (1, True)


def test_a_key_that_others_can_read_is_not_used(modelvine: Modelvine, data_dir: Path) -> None:
    modelvine("key", "new")
    (data_dir / "identity.key").chmod(0o644)
    ended = modelvine("key", "show")
    assert (ended.code, "chmod 600" in ended.err) == (1, True)


def test_a_swarm_key_is_made_for_its_owner_alone_and_never_printed(
    modelvine: Modelvine, tmp_path: Path
) -> None:
    ended = modelvine("key", "swarm", "swarm.key")
    path = tmp_path / "swarm.key"
    assert ended.code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_swarm_key(path) not in ended.out
    assert modelvine("key", "swarm", "swarm.key").code == 1
    assert modelvine("key", "swarm", "no/such/place").code == 1
