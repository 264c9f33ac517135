"""The server of a provider: callers without the key learn nothing, and an invalid page of a list is refused."""

import aiohttp
import openai
import pytest

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
