"""What a node reports when it starts: every way in, the users who can take it, and how to close an open one."""

import pytest

from node.config.addresses import HostPort
from node.config.settings import FacesSettings, NodeSettings, Settings
from node.exposure import EVERYBODY, HERE, Surface, exposure_warning, surfaces
from node.faces import Listening
from registry.settings import MeshSettings, RegistrySettings

LOOPBACK = "/ip4/127.0.0.1/tcp/6101"
PUBLIC = "/ip4/192.0.2.7/tcp/6101"
PEER = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"


def found(
    *,
    http: str = "127.0.0.1:6100",
    link: str = "127.0.0.1:7000",
    listen: str = LOOPBACK,
    swarm_key: str = "",
    allow: tuple[str, ...] = (),
    keyless: str = "machine",
    **mesh: bool,
) -> dict[str, Surface]:
    settings = Settings(
        node=NodeSettings(swarm_key=swarm_key, open=keyless),
        mesh=MeshSettings(listen=(listen,), **mesh),
        registry=RegistrySettings(allow=allow),
    )
    addresses = (f"{listen}/p2p/{PEER}",)
    return {s.name: s for s in surfaces(settings, Listening(http=http, link=link), addresses)}


def test_a_node_with_default_settings_is_open_to_its_own_machine_only() -> None:
    by_name = found()
    assert set(by_name) == {"HTTP (/v1, /api)", "metrics", "changes", "mesh", "link"}
    assert {surface.who for surface in by_name.values()} == {HERE}
    assert exposure_warning(by_name.values()) == ""


def test_every_way_in_is_one_line_with_its_address_and_its_users() -> None:
    by_name = found(listen=PUBLIC, relay=True, rendezvous_point=True, mdns=True)
    lines = {name: str(surface) for name, surface in by_name.items()}
    for name in (
        "HTTP (/v1, /api)",
        "metrics",
        "mesh",
        "link",
        "relay",
        "rendezvous point",
        "mDNS",
    ):
        assert lines[name].startswith(f"{name} at ")
        assert "\n" not in lines[name]
    assert lines["HTTP (/v1, /api)"].endswith(" at http://127.0.0.1:6100 for this machine")
    assert lines["mesh"] == f"mesh at {PUBLIC}/p2p/{PEER} for {EVERYBODY}, without a key"


def test_a_way_in_that_is_off_is_not_named() -> None:
    assert not {"relay", "rendezvous point", "mDNS"} & set(found())


@pytest.mark.parametrize("http", ["0.0.0.0:6100", "[::]:6100", "192.0.2.7:6100", "box.lan:6100"])
def test_http_on_another_address_is_open_and_the_warning_says_how_to_close_it(http: str) -> None:
    by_name = found(http=http, keyless="everybody")
    assert by_name["HTTP (/v1, /api)"].is_open
    assert by_name["metrics"].is_open
    line = exposure_warning(by_name.values())
    assert line.startswith("HTTP (/v1, /api), metrics: open to callers on other machines")
    assert "--open machine" in line
    assert "mesh" not in line


def test_access_for_all_callers_is_warned_of_on_loopback_too() -> None:
    by_name = found(keyless="everybody")
    assert "ALL callers of a proxy" in str(by_name["HTTP (/v1, /api)"])
    assert exposure_warning(by_name.values()).startswith(
        "HTTP (/v1, /api), metrics: open to callers"
    )
    assert by_name["changes"].who == HERE


@pytest.mark.parametrize("keyless", ["machine", "nobody"])
def test_keys_close_http_and_the_line_says_which_users_need_one(keyless: str) -> None:
    by_name = found(http="0.0.0.0:6100", keyless=keyless)
    assert not by_name["HTTP (/v1, /api)"].is_open
    line = str(by_name["HTTP (/v1, /api)"])
    assert "with a user's key" in line
    assert ("except users of this machine" in line) is (keyless == "machine")
    assert exposure_warning(by_name.values()) == ""


def test_changes_need_the_control_token_when_other_machines_reach_the_node() -> None:
    assert not found(http="0.0.0.0:6100")["changes"].is_open
    assert "the control token" in str(found(http="0.0.0.0:6100")["changes"])


def test_a_mesh_beyond_loopback_is_open_until_it_has_a_swarm_key_or_an_allow_list() -> None:
    assert found(listen=PUBLIC)["mesh"].is_open
    assert "--swarm-key" in exposure_warning(found(listen=PUBLIC).values())
    assert not found(listen=PUBLIC, swarm_key="swarm.key")["mesh"].is_open
    assert not found(listen=PUBLIC, allow=(PEER,))["mesh"].is_open
    assert exposure_warning(found(listen=PUBLIC, swarm_key="swarm.key").values()) == ""


def test_the_link_asks_for_a_certificate_of_the_mesh() -> None:
    link = found(link="0.0.0.0:7000")["link"]
    assert link.who == EVERYBODY
    assert not link.is_open


@pytest.mark.parametrize(
    ("name", "setting", "way_out"),
    [
        ("relay", "relay", "--relay"),
        ("rendezvous point", "rendezvous_point", "--rendezvous-point"),
        ("mDNS", "mdns", "--no-mdns"),
    ],
)  # fmt: skip
def test_each_service_for_strangers_is_warned_of_by_name(
    name: str, setting: str, way_out: str
) -> None:
    by_name = found(listen=PUBLIC, **{setting: True})
    assert by_name[name].is_open
    assert way_out in exposure_warning([by_name[name]])
    closed = found(listen=PUBLIC, swarm_key="swarm.key", **{setting: True})
    assert not closed[name].is_open
    assert not found(**{setting: True})[name].is_open


def test_faces_over_grpc_are_ways_in_too_and_keys_close_them() -> None:
    rpcs = {"localai": HostPort("127.0.0.1", 5), "remotellm": HostPort("192.0.2.7", 6)}
    listening = Listening(http="127.0.0.1:6100", link="127.0.0.1:7000", rpcs=rpcs)

    def ways(**faces: str) -> dict[str, Surface]:
        everybody = NodeSettings(open="everybody")
        settings = Settings(node=everybody, faces=FacesSettings(**faces))
        return {s.name: s for s in surfaces(settings, listening, ())}

    open_ways = ways()
    assert open_ways["gRPC (localai)"].who == HERE
    assert open_ways["gRPC (remotellm)"].is_open
    assert "gRPC (remotellm)" in exposure_warning(open_ways.values())
    assert not ways(remotellm_keys="/k")["gRPC (remotellm)"].is_open
    assert ways(localai_keys="/k")["gRPC (remotellm)"].is_open
