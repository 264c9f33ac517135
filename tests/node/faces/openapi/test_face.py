"""The document and its page: open without a key, made once, with an ETag of their content, and nothing from other hosts."""

import re

import pytest

from tests.node.faces.console.test_console import OURS


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_no_key_is_needed_and_an_unchanged_copy_is_304(closed, path):
    async with closed.http.get(path) as response:
        assert response.status == 200
        assert response.headers["content-encoding"] == "gzip"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        etag = response.headers["etag"]
    async with closed.http.get(path, headers={"If-None-Match": etag}) as response:
        assert (response.status, await response.read()) == (304, b"")


async def test_the_document_holds_no_data_of_this_node(closed):
    async with closed.http.get("/openapi.json") as response:
        assert response.content_type == "application/json"
        text = await response.text()
    assert closed.context.peer not in text
    assert closed.context.listening.http not in text


async def test_without_javascript_the_page_lists_every_operation(closed, api):
    async with closed.http.get("/docs") as response:
        text = await response.text()
    rows = re.findall(r"<tr><td><code>([A-Z]+)</code></td><td><code>([^<]+)</code>", text)
    assert {(method.lower(), path) for method, path in rows} == {
        (method, path) for path, methods in api["paths"].items() for method in methods
    }


async def test_the_console_and_the_page_link_to_each_other(closed):
    async with closed.http.get("/") as response:
        assert 'href="/docs"' in await response.text()
    async with closed.http.get("/docs") as response:
        assert 'href="/"' in await response.text()
    assert {"docs.html", "docs.js"} <= {*OURS}
