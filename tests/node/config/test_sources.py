from pathlib import Path

import pytest

from node.config.settings import PROFILES
from node.config.sources import FLAG_KEYS, KEYS, Configuration, flag, load, variable
from node.errors import WrongSetting

PEER = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"


def configured(
    tmp_path: Path, toml: str = "", flags: dict[str, object] | None = None, **environment: str
) -> Configuration:
    if toml:
        (tmp_path / "modelvine.toml").write_text(toml)
    return load(flags or {}, environment={"HOME": "/home/ada", **environment}, directory=tmp_path)


def refused(
    tmp_path: Path, toml: str = "", flags: dict[str, object] | None = None, **environment: str
) -> str:
    with pytest.raises(WrongSetting) as caught:
        configured(tmp_path, toml, flags, **environment)
    return str(caught.value)


def test_without_any_source_every_value_is_a_default(tmp_path: Path) -> None:
    found = configured(tmp_path)
    assert set(found.origins.values()) == {"default"}
    assert set(found.origins) == set(KEYS)
    assert found.settings.node.data_dir == "/home/ada/.local/share/modelvine"


def test_each_layer_overrules_the_one_before_and_is_named_as_the_origin(tmp_path: Path) -> None:
    key = "registry.sync"
    profile: dict[str, object] = {"node.profile": "wan"}
    toml = "[registry]\nsync = 4"
    assert configured(tmp_path).settings.registry.sync == 3
    wan = configured(tmp_path, flags=profile)
    assert (wan.settings.registry.sync, wan.origins[key]) == (8, "profile wan")
    from_file = configured(tmp_path, toml, profile)
    assert (from_file.settings.registry.sync, from_file.origins[key]) == (
        4,
        str(tmp_path / "modelvine.toml"),
    )
    variable = configured(tmp_path, toml, profile, MODELVINE_REGISTRY_SYNC="5")
    assert (variable.settings.registry.sync, variable.origins[key]) == (
        5,
        "MODELVINE_REGISTRY_SYNC",
    )


@pytest.mark.parametrize("name", ["deleted", "impassable" * 30])
def test_a_working_directory_that_cannot_be_looked_into_has_no_settings_file(
    tmp_path: Path, name: str
) -> None:
    found = configured(tmp_path / name)
    assert set(found.origins.values()) == {"default"}


def test_a_working_directory_may_have_been_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = load({}, environment={"HOME": "/home/ada"})
    assert set(found.origins.values()) == {"default"}


def test_a_flag_beats_the_environment(tmp_path: Path) -> None:
    found = configured(
        tmp_path, flags={"node.http": "127.0.0.1:7001"}, MODELVINE_HTTP="127.0.0.1:7000"
    )
    assert found.settings.node.http == "127.0.0.1:7001"
    assert found.origins["node.http"] == "--http"


def test_the_profile_may_itself_come_from_any_layer(tmp_path: Path) -> None:
    assert configured(tmp_path, MODELVINE_PROFILE="lan").settings.mesh.listen == (
        "/ip4/0.0.0.0/tcp/6101",
    )
    found = configured(tmp_path, '[node]\nprofile = "wan"')
    assert found.origins["mesh.ping_timeout"] == "profile wan"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_makes_a_valid_configuration_out_of_real_settings(
    tmp_path: Path, profile: str
) -> None:
    assert set(PROFILES[profile]) <= set(KEYS)
    found = configured(tmp_path, flags={"node.profile": profile})
    assert found.settings.node.profile == profile


def test_lists_are_separated_by_commas_in_the_environment(tmp_path: Path) -> None:
    found = configured(tmp_path, MODELVINE_LISTEN="/ip4/127.0.0.1/tcp/0, /ip6/::1/tcp/0")
    assert found.settings.mesh.listen == ("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0")


def test_an_empty_variable_is_an_unset_one(tmp_path: Path) -> None:
    assert configured(tmp_path, MODELVINE_HTTP="").origins["node.http"] == "default"


def test_a_named_file_is_read_instead_of_the_one_in_the_directory(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[mesh]\ndegree = 5")
    (tmp_path / "modelvine.toml").write_text("[mesh]\ndegree = 6")
    by_flag = load({}, file=str(other), environment={}, directory=tmp_path)
    by_variable = load({}, environment={"MODELVINE_CONFIG": str(other)}, directory=tmp_path)
    assert by_flag.settings.mesh.degree == by_variable.settings.mesh.degree == 5


def test_variables_that_an_orchestrator_makes_are_ignored(tmp_path: Path) -> None:
    configured(
        tmp_path,
        MODELVINE_SERVICE_HOST="10.0.0.1",
        MODELVINE_PORT="tcp://10.0.0.1:6100",
        MODELVINE_PORT_6100_TCP_ADDR="10.0.0.1",
    )


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"MODELVINE_HTTP": "nonsense"},
            "node.http is 'nonsense' (from MODELVINE_HTTP): it must be HOST:PORT",
        ),
        ({"MODELVINE_HTTP": "127.0.0.1:99999"}, "must be HOST:PORT"),
        ({"MODELVINE_NAME": "two words"}, "printable characters and no blanks"),
        ({"MODELVINE_NAME": "gpu\u202e1"}, "printable characters and no blanks"),
        ({"MODELVINE_NAME": "12D3KooWgpu"}, "not begin as a peer id does"),
        ({"MODELVINE_HTTP": "127.0.0:6100"}, "must be HOST:PORT"),
        ({"MODELVINE_HTTP": "0.0.0.0:6100"}, "--open nobody, --open machine"),
        ({"MODELVINE_FACES_LOCALAI": "0.0.0.0:6100"}, "set a file of keys"),
        ({"MODELVINE_FACES_REMOTELLM": "0.0.0.0:6100"}, "set a file of keys"),
        ({"MODELVINE_FACES_REMOTELLM": "nonsense"}, "must be HOST:PORT"),
        ({"MODELVINE_FACES_LOCALAI_KEYS": "/no/such/file"}, "names no file"),
        ({"MODELVINE_FACES_REMOTELLM_KEYS": "/no/such/file"}, "names no file"),
        ({"MODELVINE_HTTP": "gpu7.example:6100"}, "--open nobody, --open machine"),
        ({"MODELVINE_LINK": "6102"}, "node.link is '6102'"),
        ({"MODELVINE_LISTEN": "127.0.0.1:6101"}, "must look like /ip4/127.0.0.1/tcp/6101"),
        ({"MODELVINE_LISTEN": "/ip4/127.0.0.1/udp/6101"}, "must look like /ip4/"),
        ({"MODELVINE_LISTEN": "/ip4/::1/tcp/6101"}, "must look like /ip4/"),
        ({"MODELVINE_LISTEN": ","}, "at least one address"),
        ({"MODELVINE_BOOTSTRAP": "/ip4/127.0.0.1/tcp/6101"}, "p2p/12D3KooW"),
        (
            {"MODELVINE_BOOTSTRAP": "/ip4/127.0.0.1/tcp/6101/p2p/QmYyQ"},
            "is not the id of an Ed25519 key",
        ),
        ({"MODELVINE_ANNOUNCE": "gpu7.example"}, "mesh.announce is 'gpu7.example'"),
        ({"MODELVINE_STORE": "mysql://db"}, "must be memory, sqlite"),
        ({"MODELVINE_STORE": "redis"}, "must be memory, sqlite"),
        ({"MODELVINE_SWARM_KEY": "/nowhere/swarm.key"}, "names no file"),
        ({"MODELVINE_PROFILE": "moon"}, "it must be local, lan or wan"),
        ({"MODELVINE_DRAIN_TIMEOUT": "soon"}, "it must be a number of seconds from 0 to 3600"),
        ({"MODELVINE_DRAIN_TIMEOUT": "-1"}, "it must be a number of seconds from 0 to 3600"),
        ({"MODELVINE_OPEN": "perhaps"}, "it must be nobody, machine or everybody"),
        ({"MODELVINE_REGISTRY_LEASE": "5"}, "at least twice registry.heartbeat, so 120 or more"),
        (
            {"MODELVINE_REGISTRY_SUSPICION": "1"},
            "at least twice registry.probe_timeout, so 1.5 or more",
        ),
        ({"MODELVINE_REGISTRY_DENY": "somebody"}, "must list peer ids"),
        ({"MODELVINE_REGISTRY_ALLOW": "12D3KooW"}, "must list peer ids"),
        ({"MODELVINE_WEB_NAMES": "https://vine.example"}, "must list host names"),
        ({"MODELVINE_WEB_NAMES": "vine.example:80"}, "must list host names"),
        ({"MODELVINE_WEB_ORIGINS": "vine.example"}, "must list origins"),
        ({"MODELVINE_WEB_ORIGINS": "https://vine.example/"}, "must list origins"),
        ({"MODELVINE_WEB_TRUSTED_PROXIES": "proxy.example"}, "must list addresses and networks"),
        ({"MODELVINE_WEB_TRUSTED_PROXIES": "10.0.0.1/8"}, "must list addresses and networks"),
        ({"MODELVINE_WEB_TRUSTED_PROXIES": "127.0.0.1,::/0"}, "must not include all addresses"),
        ({"MODELVINE_WEB_PROXY_PROTOCOL": "true"}, "needs web.trusted_proxies"),
        ({"MODELVINE_REGISTRY_FRAMES_PER_SECOND": "inf"}, "must be a finite number"),
        ({"MODELVINE_WEB_MAX_BODIES_BYTES": "1000000"}, "must be at least router.max_body_bytes"),
        ({"MODELVINE_ROUTER_POLICY": "best"}, "must be one of "),
        (
            {"MODELVINE_HTPP": "x"},
            "MODELVINE_HTPP, which does not exist: did you mean MODELVINE_HTTP",
        ),
        ({"MODELVINE_MESH_LISTEN": "x"}, "did you mean MODELVINE_LISTEN?"),
    ],
)
def test_a_wrong_variable_is_named_with_what_would_be_right(
    tmp_path: Path, environment: dict[str, str], sentence: str
) -> None:
    assert sentence in refused(tmp_path, "", None, **environment)


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        (
            "[registry]\nheartbeet = 3",
            "sets registry.heartbeet, which does not exist: did you mean",
        ),
        (
            "[regstry]\nheartbeat = 3",
            "has [regstry], which does not exist: the sections are [node]",
        ),
        ('http = "127.0.0.1:1"', "sets http outside its section: put it under [node]"),
        ("[node]\nhttp = 6100", "node.http is 6100 (from "),
        ('[mesh]\nlisten = "/ip4/127.0.0.1/tcp/1"', "'/ip4/127.0.0.1/tcp/1' (from "),
        ('[mesh]\nlisten = "/ip4/127.0.0.1/tcp/1"', "it must be a list of texts in quotes"),
        ("[mesh]\nlisten = [1]", "it must be a list of texts in quotes"),
        ("[mesh]\nmdns = 2", "mesh.mdns is 2 (from "),
        ("[mesh]\nmdns = 2", "it must be true or false"),
        ('[mesh]\nname = ""', "it must be a text in quotes of 1 to 256 characters"),
        ('[node]\nname = ["a"]', "node.name is ['a'] (from "),
        ("[node]\nname = 5", "it must be a text in quotes"),
        ("[node]\nworkers = 2026-01-01", "node.workers is 2026-01-01 (from "),
        ("[node]\nworkers = {a = 1}", "node.workers is a table (from "),
        ("[node]\nworkers = true", "node.workers is true (from "),
        ("[node]\nworkers = true", "it must be a whole number from 1 to 64"),
        ("[router]\nidle_timeout = nan", "it must be a number of seconds above 0 to 3600"),
        ('[router]\nidle_timeout = "60s"', "it must be a number of seconds above 0 to 3600"),
        ('[web]\nmax_bodies_bytes = "64MB"', "it must be a whole number of bytes from 65536"),
        ('[node]\nlog_level = "loud"', "it must be debug, info, warning or error"),
        ("[node", "is not TOML"),
        (
            '[[node]]\nhttp = "127.0.0.1:1"',
            "sets node, which must be a table: begin it with [node]",
        ),
        ("web = 5", "sets web, which must be a table: begin it with [web]"),
    ],
)
def test_a_wrong_file_is_named_with_what_would_be_right(
    tmp_path: Path, toml: str, sentence: str
) -> None:
    complaint = refused(tmp_path, toml)
    assert sentence in complaint
    assert "modelvine.toml" in complaint


@pytest.mark.parametrize(
    "traces",
    [
        "collector:4318", "ftp://collector/v1/traces", "http://", "http://a:x/", "http://a b/", "http://a/\n",
        "http://ann:secret@collector/", "http://collector/?key=secret",
    ],
)  # fmt: skip
def test_a_collector_is_named_by_a_url_without_a_secret(tmp_path: Path, traces: str) -> None:
    complaint = refused(tmp_path, MODELVINE_TRACES=traces)
    assert "must be a URL like http://127.0.0.1:4318/v1/traces" in complaint
    assert "ann:secret" not in complaint


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="cannot be read: No such file"):
        load({}, file=str(tmp_path / "absent.toml"), environment={}, directory=tmp_path)


def test_every_wrong_setting_is_named_at_once(tmp_path: Path) -> None:
    complaint = refused(tmp_path, MODELVINE_REGISTRY_HEARTBEAT="0", MODELVINE_MESH_DEGREE="100")
    assert len(complaint.splitlines()) == 2


def test_an_open_face_is_allowed_when_node_open_is_set(tmp_path: Path) -> None:
    found = configured(tmp_path, flags={"node.http": "0.0.0.0:0", "node.open": True})
    assert found.settings.node.http == "0.0.0.0:0"


@pytest.mark.parametrize("http", ["127.0.0.1:0", "[::1]:6100", "localhost:6100", "127.8.0.1:1"])
def test_a_face_on_loopback_needs_no_permission(tmp_path: Path, http: str) -> None:
    assert configured(tmp_path, flags={"node.http": http}).settings.node.http == http


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/192.0.2.7/tcp/6101/p2p/{PEER}",
        f"/dns4/node1/tcp/6101/p2p/{PEER}",
        f"/ip6/2001:db8::1/tcp/6101/p2p/{PEER}",
    ],
)
def test_bootstrap_addresses_name_the_peer_that_must_answer(tmp_path: Path, address: str) -> None:
    assert configured(tmp_path, MODELVINE_BOOTSTRAP=address).settings.mesh.bootstrap == (address,)


@pytest.mark.parametrize(
    "store",
    [
        "redis://:hush@db:6379/0",
        "redis://ada:hush@db/0",
        "redis://db/0?password=hush",
        "postgresql://ada:hush@db:5432/vine?sslmode=require",
        "postgres://ada:hush@one:5432,two:5432/vine",
        "postgresql://db/vine?user=ada&password=hush",
        "postgresql://db/vine?sslkey=k&sslpassword=hush",
        "mysql://a:hush@b",
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, store: str) -> None:
    shown = (
        refused(tmp_path, MODELVINE_STORE=store)
        if store.startswith("mysql")
        else str(configured(tmp_path, MODELVINE_STORE=store).rows())
    )
    assert "hush" not in shown
    assert "***" in shown


@pytest.mark.parametrize("store", ["redis://:hush@db/0", "postgresql://ada:hush@db/vine"])
def test_a_password_on_the_command_line_is_refused(tmp_path: Path, store: str) -> None:
    complaint = refused(tmp_path, flags={"node.store": store})
    assert "put it into MODELVINE_STORE" in complaint
    assert "hush" not in complaint


@pytest.mark.parametrize("store", ["postgresql://ada@db/vine", "postgres://ada@one,two/vine"])
def test_a_user_of_postgresql_without_a_password_is_no_secret(tmp_path: Path, store: str) -> None:
    made = configured(tmp_path, flags={"node.store": store})
    assert made.settings.node.store == store
    assert store in str(made.rows())


def test_variables_and_flags_of_two_settings_never_share_a_name() -> None:
    assert len({variable(key) for key in KEYS}) == len(KEYS)
    assert len({flag(key) for key in FLAG_KEYS}) == len(FLAG_KEYS)


def test_an_invalid_network_of_workers_is_refused_with_an_example(tmp_path: Path) -> None:
    message = refused(tmp_path, '[router]\nworker_networks = ["box.lan"]')
    assert "router.worker_networks" in message
    assert "192.0.2.7/32" in message
    listed = configured(tmp_path, '[router]\nworker_networks = ["192.0.2.0/28", "2001:db8::7"]')
    assert listed.settings.router.worker_networks == ("192.0.2.0/28", "2001:db8::7")


def test_names_and_origins_are_lists_or_a_star(tmp_path: Path) -> None:
    content = (
        'names = ["vine.example", "*"]\norigins = ["https://a.example", "http://[::1]:3000", "*"]'
    )
    settings = configured(tmp_path, f"[web]\n{content}").settings.web
    assert settings.names == ("vine.example", "*")
    assert settings.origins == ("https://a.example", "http://[::1]:3000", "*")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    toml = '\ufeff[node]\nhttp = "127.0.0.1:1"'
    assert configured(tmp_path, toml).settings.node.http == "127.0.0.1:1"
