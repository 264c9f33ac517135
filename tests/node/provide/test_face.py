"""HTTP of a provider: callers without the key learn nothing, and errors have OpenAI's shape."""

import aiohttp
import openai
import orjson
import pytest

from node.provide.face import Fault, as_json, name_of, require_purpose
from tests.node.provide.conftest import KEY


async def test_a_caller_without_the_key_learns_nothing(url):
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {KEY}"}):
            for path in ("/v1/models", "/v1/files", "/v1/batches/x", "/elsewhere"):
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == 401


async def test_an_invalid_page_of_a_list_is_refused(client):
    for wrong in (
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "²"},
        {"limit": "9" * 5_000},
        {"after": "file-none"},
    ):
        with pytest.raises(openai.BadRequestError):
            await client.files.list(extra_query=wrong)


def test_a_fault_says_what_and_where() -> None:
    fault = Fault(400, "no", param="file")
    assert fault.status == 400
    assert orjson.loads(fault.body or b"") == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "file", "code": None}
    }
    assert orjson.loads(Fault(507, "full").body or b"")["error"]["type"] == "server_error"


def test_a_purpose_of_another_type_is_refused() -> None:
    for purpose in (["batch"], {}, None, "x"):
        with pytest.raises(Fault):
            require_purpose(purpose, {"batch"})


def test_a_name_can_be_stored() -> None:
    assert [name_of(name) for name in ("ü", "\udcfc\0", None, "a" * 300)] == [
        "ü",
        "??",
        "file",
        "a" * 255,
    ]


def test_an_answer_is_json() -> None:
    assert as_json({"a": 1}).content_type == "application/json"
