"""What a lone node tells its operator: the address that other nodes need, and what keeps them out."""

from node.peers.reach import invitation

HERE = "/ip4/127.0.0.1/tcp/6101/p2p/12D3"
LAN = "/ip4/192.0.2.7/tcp/6101/p2p/12D3"


def test_other_nodes_are_given_an_address_that_they_can_reach():
    said = invitation([HERE, LAN], private=False)
    assert said.endswith(f"--bootstrap {LAN}")
    assert HERE not in said


def test_a_node_on_loopback_says_that_only_this_machine_can_join():
    said = invitation([HERE], private=False)
    assert f"--bootstrap {HERE}" in said
    assert "--profile lan" in said


def test_a_private_mesh_needs_its_key_as_well():
    assert "--swarm-key FILE" in invitation([LAN], private=True)
    assert "--swarm-key" not in invitation([LAN], private=False)


def test_a_node_without_a_mesh_cannot_be_joined():
    assert "none can join" in invitation([], private=False)
