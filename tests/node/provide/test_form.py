"""Errors of the provider have OpenAI's shape."""

import orjson
import pytest

from node.provide.form import Fault, as_json, name_of, require_purpose


def test_a_fault_says_what_and_where() -> None:
    fault = Fault(400, "no", param="file")
    assert fault.status == 400
    assert orjson.loads(fault.body or b"") == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "file", "code": None}
    }
    assert orjson.loads(Fault(507, "full").body or b"")["error"]["type"] == "server_error"


def test_a_purpose_of_another_type_is_refused() -> None:
    for said in (["batch"], {}, None, "x"):
        with pytest.raises(Fault):
            require_purpose(said, {"batch"})


def test_a_name_can_be_stored() -> None:
    assert [name_of(said) for said in ("ü", "\udcfc\0", None, "a" * 300)] == [
        "ü",
        "??",
        "file",
        "a" * 255,
    ]


def test_an_answer_is_json() -> None:
    assert as_json({"a": 1}).content_type == "application/json"
