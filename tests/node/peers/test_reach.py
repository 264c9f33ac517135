"""Addresses that a node gives to other nodes, and what a lone node tells its operator."""

from node.config.addresses import HostPort
from node.peers.reach import invitation, local_address, own_ports, reach_of


def test_a_listener_on_one_address_is_found_there() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/6101/p2p/x"]
    reach = reach_of(mesh, link=HostPort("10.0.0.1", 7000), certificate=b"c")
    assert reach.links == ("10.0.0.1:7000",)
    assert reach.mesh == tuple(mesh)
    assert reach.certificate == b"c"


def test_a_listener_on_every_address_is_found_where_the_mesh_is() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/6101/p2p/x", "/ip6/fd00::1/tcp/6101/p2p/x", "/dns4/one/tcp/1/p2p/x"]
    reach = reach_of(mesh, link=HostPort("0.0.0.0", 7000), certificate=b"")
    assert reach.links == ("10.0.0.1:7000", "[fd00::1]:7000", "one:7000")


def test_one_host_with_two_ports_is_one_link() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/1/p2p/x", "/ip4/10.0.0.1/tcp/2/p2p/x"]
    reach = reach_of(mesh, link=HostPort("::", 7000), certificate=b"")
    assert reach.links == ("10.0.0.1:7000",)


def test_the_host_of_a_relay_is_no_link_of_the_node() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/1/p2p/x", "/ip4/192.0.2.1/tcp/1/p2p/relay/p2p-circuit/p2p/x"]
    reach = reach_of(mesh, link=HostPort("0.0.0.0", 7000), certificate=b"")
    assert reach.links == ("10.0.0.1:7000",)
    assert reach.mesh == tuple(mesh)


def test_our_own_listener_is_reached_where_it_listens() -> None:
    assert str(local_address(HostPort("10.0.0.1", 7000))) == "10.0.0.1:7000"
    assert str(local_address(HostPort("0.0.0.0", 7000))) == "127.0.0.1:7000"
    assert str(local_address(HostPort("::", 7000))) == "[::1]:7000"


def test_a_node_knows_the_ports_that_are_its_own() -> None:
    mesh = ("/ip4/10.0.0.1/tcp/6101/p2p/x", "/ip6/::1/tcp/6102", "/dns4/node/tcp/x", "nonsense")
    assert own_ports(("127.0.0.1:6100", "[::1]:6103", "?"), mesh) == {6100, 6101, 6102, 6103}


HERE = "/ip4/127.0.0.1/tcp/6101/p2p/12D3"
LAN = "/ip4/192.0.2.7/tcp/6101/p2p/12D3"
EVERYWHERE = "/ip4/0.0.0.0/tcp/6101"


def test_other_nodes_are_given_an_address_that_they_can_reach():
    text = invitation([HERE, LAN], listen=[EVERYWHERE], private=False)
    assert text.endswith(f"--bootstrap {LAN}")
    assert HERE not in text


def test_a_node_whose_machine_has_no_address_of_that_family_names_the_listener_of_the_other():
    text = invitation([HERE], listen=[EVERYWHERE], private=False)
    assert f"no address of {EVERYWHERE}" in text
    assert "--listen /ip6/::/tcp/6101" in text


def test_a_node_on_loopback_says_that_only_this_machine_can_join():
    text = invitation([HERE], listen=[HERE], private=False)
    assert f"--bootstrap {HERE}" in text
    assert "--profile lan" in text


def test_a_private_mesh_needs_its_key_as_well():
    assert "--swarm-key FILE" in invitation([LAN], listen=[EVERYWHERE], private=True)
    assert "--swarm-key" not in invitation([LAN], listen=[EVERYWHERE], private=False)


def test_a_node_without_a_mesh_cannot_be_joined():
    assert "none can join" in invitation([], listen=[EVERYWHERE], private=False)
