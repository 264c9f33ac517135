import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.addresses import HostPort, check_announce, check_dial, check_listen, host_port

PEER = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"


@given(st.ip_addresses().map(str) | st.just("localhost"), st.integers(0, 65_535))
def test_a_written_host_and_port_is_read_back(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert host_port(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", ":", "6100", ":6100", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:٣",
     "::1:6100", "[127.0.0.1]:1", "[::1]", "256.0.0.1:1", "a b:1", "a/b:1", "-a:1", "x" * 300 + ":1", "a:1\n"],
)  # fmt: skip
def test_text_that_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        host_port(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.0.4", False), ("localhost.example", False)],
)  # fmt: skip
def test_only_loopback_is_out_of_reach_of_other_machines(host: str, loopback: bool) -> None:
    assert HostPort(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    "address",
    ["/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/6101", "/ip6/::/tcp/6101", "/ip6/fe80::1/tcp/1"],
)
def test_a_mesh_listens_on_ip_addresses_with_a_tcp_port(address: str) -> None:
    check_listen(address)


@pytest.mark.parametrize(
    "address",
    ["", "/", "/ip4", "ip4/127.0.0.1/tcp/1", "/dns4/node1/tcp/1", "/ip4/127.0.0.1/tcp/1/", "/ip4/127.0.0.1/tcp/1/ws",
     "/ip4/127.0.0.1/tcp/99999", f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}", "/ip6/127.0.0.1/tcp/1", "/" * 600],
)  # fmt: skip
def test_any_other_address_to_listen_on_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must look like"):
        check_listen(address)


@pytest.mark.parametrize(
    "address",
    [f"/ip4/127.0.0.1/tcp/1/p2p/{PEER[:-1]}", f"/ip4/127.0.0.1/tcp/1/ipfs/{PEER}", "/ip4/127.0.0.1/tcp/1", "/dns4//tcp/1"],
)  # fmt: skip
def test_a_dialled_address_names_its_peer(address: str) -> None:
    with pytest.raises(ValueError, match="must look like"):
        check_dial(address)


@pytest.mark.parametrize(
    "address", ["/dns4/gpu7.example/tcp/6101", f"/ip4/203.0.113.7/tcp/6101/p2p/{PEER}"]
)
def test_an_advertised_address_may_leave_the_peer_out(address: str) -> None:
    check_announce(address)


def test_an_advertised_address_that_ends_in_p2p_without_a_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="must look like"):
        check_announce("/ip4/203.0.113.7/tcp/6101/p2p")
