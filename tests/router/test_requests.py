"""Laws of what is asked."""

from registry.records import PeerId
from router.requests import ANYWHERE, Kind, Pin, Request


def test_a_request_restricts_nothing_and_passes_nothing_unless_told() -> None:
    request = Request("r", Kind.CHAT, "m", b"", "application/json")
    assert request.pin == ANYWHERE == Pin("", None, None)
    assert not request.own_only
    assert dict(request.passed) == {}


def test_the_empty_cid_is_a_replica_and_no_cid_is_any() -> None:
    assert Pin(cid="") != Pin(cid=None)
    assert Pin(node=PeerId("n")).node == "n"


def test_a_kind_is_its_path() -> None:
    assert Kind("chat/completions") is Kind.CHAT
    assert all(not kind.value.startswith("/") for kind in Kind)
