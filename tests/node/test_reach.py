"""Laws of the addresses that a node gives to others."""

import pytest

from node.reach import join_address, reach_of, split_address


def test_a_listener_on_one_address_is_found_there() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/6101/p2p/x"]
    reach = reach_of(mesh, link_host="10.0.0.1", link_port=7000, certificate=b"c")
    assert reach.links == ("10.0.0.1:7000",)
    assert reach.mesh == tuple(mesh)
    assert reach.certificate == b"c"


def test_a_listener_on_every_address_is_found_where_the_mesh_is() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/6101/p2p/x", "/ip6/fd00::1/tcp/6101/p2p/x", "/dns4/one/tcp/1/p2p/x"]
    reach = reach_of(mesh, link_host="0.0.0.0", link_port=7000, certificate=b"")
    assert reach.links == ("10.0.0.1:7000", "[fd00::1]:7000", "one:7000")


def test_one_host_with_two_ports_is_one_link() -> None:
    mesh = ["/ip4/10.0.0.1/tcp/1/p2p/x", "/ip4/10.0.0.1/tcp/2/p2p/x"]
    reach = reach_of(mesh, link_host="::", link_port=7000, certificate=b"")
    assert reach.links == ("10.0.0.1:7000",)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:65535", "node1:6100"])
def test_an_address_survives_splitting_and_joining(address: str) -> None:
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":", "host:", "host:port", "host:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        split_address(address)
