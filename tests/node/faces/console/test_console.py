"""The console's page and files: open without a key, free of protected data, and safe from scripts that a peer wrote."""

import gzip
import json
import re

import pytest

from node.auth.keys import Allowance, Role
from node.config.settings import KeylessAccess
from node.faces.console import FOLDER, TYPES, assets
from registry.mesh.memory import MemoryNet
from scripts import vendor
from tests.node.faces.assembly import World, bearer, node, raw, settings_of

BUDGET = 150_000
"""Upper bound in bytes of all files that the page may load, compressed."""

OURS = sorted(name for name in assets() if not name.startswith("vendor/"))


async def page(running, headers=None):
    async with running.http.get("/", headers=headers or {}) as response:
        return response.status, response.headers, await response.text()


async def test_the_page_needs_no_key_and_shows_no_data_without_one(closed):
    status, headers, text = await page(closed)
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert "<table>" not in text
    assert closed.context.peer[:14] not in text


@pytest.mark.parametrize(("role", "shown"), [(Role.USER, False), (Role.VIEWER, True)])
async def test_tables_are_shown_to_roles_that_may_look(closed, role, shown):
    key = (await closed.context.keys.create({"ann": Allowance(role=role)}))["ann"]
    _, _, text = await page(closed, bearer(key))
    assert ("<table>" in text) is shown


async def test_a_wrong_key_shows_no_tables(closed):
    status, _, text = await page(closed, bearer("mv_wrong"))
    assert (status, "<table>" in text) == (200, False)


async def test_users_of_the_machine_see_nodes_and_models_without_javascript(worker):
    async with node(World(MemoryNet()), settings_of(keyless=KeylessAccess.MACHINE)) as running:
        await running.register(worker)
        _, _, text = await page(running)
    assert "<td>alive</td>" in text
    assert "<td>tiny</td>" in text


@pytest.mark.parametrize("path", ["/", "/console/main.js", "/console/style.css"])
async def test_only_files_of_the_node_may_be_run_or_loaded(alone, path):
    async with alone.http.get(path) as response:
        assert response.status == 200
        policy = response.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
        assert "unsafe" not in "".join(policy)
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_files_are_compressed_and_have_an_etag_of_their_content(alone):
    async with alone.http.get("/console/style.css") as response:
        assert response.headers["content-encoding"] == "gzip"
        etag, text = response.headers["etag"], await response.read()
    assert text == (FOLDER / "style.css").read_bytes()
    plain = {"Accept-Encoding": "identity"}
    async with alone.http.get("/console/style.css", headers=plain) as response:
        assert "content-encoding" not in response.headers
        assert await response.read() == text
    async with alone.http.get("/console/style.css", headers={"If-None-Match": etag}) as response:
        assert (response.status, await response.read()) == (304, b"")


@pytest.mark.parametrize(
    "name",
    ["no.js", "../__init__.py", "%2e%2e/__init__.py", "vendor/packages.json", "vendor/uplot/LICENSE", "/etc/passwd"],
)  # fmt: skip
async def test_a_path_that_is_no_file_of_the_page_is_not_found(alone, name):
    # An HTTP client would remove the dots.
    answer = await raw(alone, f"GET /console/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"the console has no such file" in answer


def test_all_files_together_are_small():
    packed = sum(len(gzip.compress(asset.content)) for asset in assets().values())
    assert packed <= BUDGET
    assert {name.rpartition(".")[2] for name in assets()} == {s.removeprefix(".") for s in TYPES}


@pytest.mark.parametrize("name", OURS)
def test_our_files_name_no_other_host_and_write_no_markup(name):
    text = assets()[name].content.decode()
    namespace = "http://www.w3.org/2000/svg"
    assert "://" not in text.replace(namespace, "").replace("http://127.0.0.1", "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"\sstyle=|\son\w+=[\"']|<script>|<style", text)


def test_the_libraries_match_their_pins():
    pins = json.loads(vendor.PINS.read_text())
    assert vendor.faults(pins) == []
    assert all("LICENSE" in pin["files"] for pin in pins.values())


def test_a_changed_library_is_detected():
    pins = json.loads(vendor.PINS.read_text())
    pins["uplot"]["files"]["LICENSE"] = "0" * 64
    del pins["d3-timer"]
    assert vendor.faults(pins) == [
        "d3-timer/LICENSE",
        "d3-timer/d3-timer.min.js",
        "uplot/LICENSE",
    ]


def test_a_package_with_another_hash_is_refused():
    with pytest.raises(ValueError, match="sha512-AAAA"):
        vendor.checked(b"a package", "sha512-AAAA")
