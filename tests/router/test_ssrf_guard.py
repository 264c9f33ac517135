"""Addresses that a worker may have: decided by host and port, whatever the spelling."""

import pytest

from router.ssrf_guard import ELSEWHERE, OURSELVES, SsrfGuard, networks_of

MINE = {"localhost", "127.0.0.1", "192.0.2.7"}
HERE = SsrfGuard(MINE.__contains__, lambda: {6100, 6101})
LISTED = SsrfGuard(
    MINE.__contains__, lambda: {6100}, networks_of(["198.51.100.0/28", "2001:db8::7"])
)


@pytest.mark.parametrize("host", sorted(MINE))
def test_this_machine_is_allowed_but_for_the_nodes_own_ports(host: str) -> None:
    assert HERE.objection(host, 8080) == ""
    assert HERE.objection(host, 6100) == OURSELVES
    assert HERE.objection(host, 6101) == OURSELVES


@pytest.mark.parametrize(
    "host", ["198.51.100.1", "example.org", "", "0.0.0.0", "::", "localhost.evil"]
)
def test_no_other_machine_is_allowed(host: str) -> None:
    assert HERE.objection(host, 8080) == ELSEWHERE


@pytest.mark.parametrize("host", ["198.51.100.1", "::ffff:198.51.100.15", "2001:db8::7"])
def test_a_network_that_the_operator_named_is_allowed_whatever_the_spelling(host: str) -> None:
    assert LISTED.objection(host, 8080) == ""
    assert LISTED.objection(host, 6100) == OURSELVES


@pytest.mark.parametrize(
    "host", ["198.51.100.16", "2001:db8::8", "192.0.2.8", "box.lan", "3325256705"]
)
def test_hosts_outside_that_network_and_host_names_are_refused(host: str) -> None:
    assert LISTED.objection(host, 8080) == ELSEWHERE


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_only_loopback_is_allowed_by_default(host: str) -> None:
    assert SsrfGuard().objection(host, 1) == ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "2130706433",
        "0177.0.0.1",
        "127.1",
        "0x7f000001",
        "::ffff:10.0.0.1",
    ],
)
def test_host_names_and_odd_spellings_of_loopback_are_refused_by_default(host: str) -> None:
    assert SsrfGuard().objection(host, 1) == ELSEWHERE


@pytest.mark.parametrize("text", ["", "box.lan", "192.0.2.7/28", "192.0.2.0/33", "1"])
def test_a_text_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"network|address|host bits"):
        networks_of([text])
