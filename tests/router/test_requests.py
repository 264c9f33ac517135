"""Laws of requests."""

from dataclasses import fields
from typing import Any

from registry.records import PeerId
from router.requests import ANYWHERE, Kind, PassedHeaders, Pin, Request


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


def test_a_request_as_it_is_asked_differs_only_in_what_is_given() -> None:
    names = [field.name for field in fields(Request)]
    # One object of its own for each field: none may land in another's place.
    request: Any = Request("r", Kind.CHAT, "m", b"", "application/json")
    values: dict[str, object] = {
        "kind": Kind.IMAGE, "body": b"b", "stream": True, "own_only": True, "waits": True, "holds": False, "plain": True,
        "background": True, "continues": True, "patience": 1.5, "aim": 2.5, "deaths": 3, "pin": Pin("p"),
        "fallbacks": ("f",), "passed": PassedHeaders({"a": "b"}),
        **{name: name for name in ("id", "model", "content_type", "session", "caller")},
    }  # fmt: skip
    for name, value in values.items():
        setattr(request, name, value)
    passed = PassedHeaders({"c": "d"})
    forwarded = request.for_candidate(waits=False, patience=0.5, holds=True, passed=passed)
    changes = {"waits": False, "patience": 0.5, "holds": True, "passed": passed}
    assert {name: getattr(forwarded, name) for name in names} == {
        name: getattr(request, name) for name in names
    } | changes
