"""Address of a forwarded caller: what trusted proxies tell counts; what a caller forges or another peer tells has no effect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.auth.forwarded import MAX_HOPS, NO_PROXIES, TrustedProxies, network_of

PROXY = "10.0.0.1"
PROXIES = TrustedProxies(["10.0.0.0/30", "2001:db8:1::/48", "127.0.0.1"])
WHO = "192.0.2.7"


@pytest.mark.parametrize(
    ("told", "caller"),
    [
        ([], PROXY),
        ([""], PROXY),
        ([WHO], WHO),
        ([f"  {WHO}\t"], WHO),
        ([f"198.51.100.1, {WHO}"], WHO),
        ([f"198.51.100.1,{WHO},10.0.0.2"], WHO),
        ([f"198.51.100.1, {WHO}", "10.0.0.2, 10.0.0.3"], WHO),
        (["198.51.100.1", WHO], WHO),
        ([f"{WHO}:4711"], WHO),
        ([f"{WHO}, 10.0.0.2:80"], WHO),
        (["2001:db8::7"], "2001:db8::7"),
        (["2001:0DB8:0::0007"], "2001:db8::7"),
        (["[2001:db8::7]"], "2001:db8::7"),
        (["[2001:db8::7]:443"], "2001:db8::7"),
        (["fe80::1%eth0"], "fe80::1"),
        (["[fe80::1%25eth0]:5"], "fe80::1"),
        ([f"::ffff:{WHO}"], WHO),
        ([f"{WHO}, 2001:db8:1::9"], WHO),
        # Garbage left of the address that counts was written by the caller.
        ([f"<script>, ,,unknown, {WHO}"], WHO),
        ([f"{'9' * 10_000}, {WHO}"], WHO),
        # Callers within a network that is trusted as a whole.
        (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (["10.0.0.2"], "10.0.0.2"),
    ],
)
def test_the_rightmost_address_that_is_not_a_proxys_counts(told, caller):
    assert PROXIES.caller_of(PROXY, told) == caller


@pytest.mark.parametrize(
    "hop",
    [
        "unknown", "_hidden", "192.0.2", "192.0.2.256", "192.0.2.07", "192.0.2.7:", "192.0.2.7:123456", "192.0.2.7%eth0", "1",
        "[2001:db8::7", "2001:db8::7]", "[192.0.2.7]", "[2001:db8::7]x", "2001:db8::7::1", "fe80::1%", "fe80::1%a b",
        f"fe80::1%{'z' * 33}", "\0", "١٩٢.0.2.7", "192.0.2.7 192.0.2.8", "for=192.0.2.7", "\udcff", ":", "::::", "%", ".......",
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_not_believed_at_all(hop):
    assert PROXIES.caller_of(PROXY, [f"{WHO}, {hop}"]) == PROXY
    assert PROXIES.caller_of(PROXY, [f"{WHO}, {hop}, 10.0.0.2"]) == PROXY


def test_beyond_the_most_hops_only_the_last_proxy_is_believed():
    on_their_way = ["10.0.0.2"] * (MAX_HOPS - 1)
    assert PROXIES.caller_of(PROXY, [WHO, *on_their_way]) == WHO
    assert PROXIES.caller_of(PROXY, [WHO, *on_their_way, "10.0.0.2"]) == PROXY


@pytest.mark.parametrize("address", [WHO, "10.0.0.4", "2001:db8:2::1", "", "nonsense", "::1"])
def test_a_header_from_an_untrusted_address_has_no_effect(address):
    assert PROXIES.caller_of(address, ["198.51.100.1"]) == address
    assert address not in PROXIES


def test_no_proxy_is_trusted_by_default():
    assert not NO_PROXIES
    assert NO_PROXIES.caller_of("127.0.0.1", [WHO]) == "127.0.0.1"


@pytest.mark.parametrize("address", ["::ffff:10.0.0.1", "127.0.0.1", "2001:db8:1:2::3%eth0"])
def test_a_proxy_is_recognized_in_every_spelling_of_its_address(address):
    assert address in PROXIES


@pytest.mark.parametrize("network", ["proxy.example", "10.0.0.1/8", "", "10.0.0.0/33"])
def test_text_that_is_no_network_is_refused(network):
    with pytest.raises(ValueError):  # noqa: PT011 (the standard library's words)
        TrustedProxies([network])


@given(st.lists(st.text(max_size=80), max_size=5))
def test_any_header_yields_an_address(told):
    address = PROXIES.caller_of(PROXY, told)
    assert network_of(address)
    assert PROXIES.caller_of(PROXY, [address]) == address


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (WHO, WHO),
        (f"::ffff:{WHO}", WHO),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::%eth0", "2001:db8:1:2::/64"),
        ("nonsense", "nonsense"),
    ],
)
def test_all_addresses_of_an_ipv6_network_count_as_one(address, network):
    assert network_of(address) == network
