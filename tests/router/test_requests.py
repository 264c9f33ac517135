"""Laws of requests."""

from registry.records import PeerId
from router.requests import ANYWHERE, Kind, Pin, Request


def test_a_request_has_no_pin_and_passes_no_headers_by_default() -> None:
    request = Request("r", Kind.CHAT, "m", b"", "application/json")
    assert request.pin == ANYWHERE == Pin("", None, None)
    assert not request.own_only
    assert dict(request.passed) == {}


def test_an_empty_cid_names_a_replica_and_no_cid_means_any() -> None:
    assert Pin(cid="") != Pin(cid=None)
    assert Pin(node=PeerId("n")).node == "n"


def test_a_kind_is_its_path() -> None:
    assert Kind("chat/completions") is Kind.CHAT
    assert all(not kind.value.startswith("/") for kind in Kind)
