"""The server of a provider: strangers learn nothing, and a page of a list is one or is refused."""

import aiohttp
import openai
import pytest

from tests.node.provide.conftest import KEY


async def test_who_does_not_show_the_key_learns_nothing(url):
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {KEY}"}):
            for path in ("/v1/models", "/v1/files", "/v1/batches/x", "/elsewhere"):
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == 401


async def test_a_page_that_is_none_is_refused(client):
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"after": "file-none"}):
        with pytest.raises(openai.BadRequestError):
            await client.files.list(extra_query=wrong)
