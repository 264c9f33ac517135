"""Fetching images: from the public web only, if that is allowed, and only if they are images."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest
from aiohttp import web

from router.errors import WorkerRejected, WorkerUnable
from router.http import fetch
from router.http.fetch import MAX_FETCHED_BYTES, ImageFetcher, is_public, objection
from tests.router.world import QUICK

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
ALLOWED = QUICK.model_copy(update={"fetch_images": True})


@dataclass
class Server:
    """A web server that returns one body."""

    body: bytes = PNG
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    seen: list[web.Request] = field(default_factory=list)

    async def handle(self, http: web.Request) -> web.Response:
        self.seen.append(http)
        return web.Response(body=self.body, status=self.status, headers=self.headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/a.png?b=c"
    yield made
    await runner.cleanup()


@pytest.fixture
def anywhere() -> ImageFetcher:
    """A fetcher that may fetch from this machine too."""
    return ImageFetcher(ALLOWED, lambda _, __: "")


async def refused(fetches: ImageFetcher, address: str) -> str:
    with pytest.raises(WorkerRejected) as error:
        await fetches.image(address, "image")
    payload = orjson.loads(error.value.body)["error"]
    assert (payload["param"], error.value.status) == ("image", 400)
    return str(payload["message"])


async def test_an_image_is_fetched_without_any_header_of_the_request(
    server: Server, anywhere: ImageFetcher
) -> None:
    assert await anywhere.image(server.url, "image") == PNG
    [request] = server.seen
    assert (request.method, request.path_qs) == ("GET", "/a.png?b=c")
    assert {name.lower() for name in request.headers} == {
        "host", "accept", "accept-encoding", "content-length",
    }  # fmt: skip


async def test_nothing_is_fetched_unless_fetching_is_allowed(server: Server) -> None:
    with pytest.raises(WorkerUnable) as unable:
        await ImageFetcher(QUICK, lambda _, __: "").image(server.url, "image")
    assert (unable.value.param, server.seen) == ("image", [])


async def test_nothing_is_fetched_from_this_machine(server: Server) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "0"):
        await refused(ImageFetcher(ALLOWED), server.url.replace("127.0.0.1", host))
        await refused(ImageFetcher(ALLOWED), f"http://{host}/a.png")
    assert server.seen == []


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"<html>", 200), (b"", 200), (PNG, 404), (PNG, 302), (PNG, 500), (PNG + bytes(MAX_FETCHED_BYTES), 200)],
    ids=["html", "nothing", "404", "302", "500", "large"],
)  # fmt: skip
async def test_an_answer_that_is_no_image_is_refused(
    server: Server, anywhere: ImageFetcher, body: bytes, status: int
) -> None:
    server.body, server.status = body, status
    server.headers = {"Location": server.url} if status == 302 else {}
    await refused(anywhere, server.url)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "address",
    ["ftp://example.org/a", "http://", "http://u:p@example.org/a", "http://h:99999/", "a.png", "http://[::"],
)  # fmt: skip
async def test_an_invalid_address_is_refused(anywhere: ImageFetcher, address: str) -> None:
    await refused(anywhere, address)


async def test_fetching_an_image_times_out(
    server: Server, anywhere: ImageFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FETCH_SECONDS", 0.0)
    assert "longer than" in await refused(anywhere, server.url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1",
        "64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1",
        "example.org",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_recognised(address: str) -> None:
    assert not is_public(address)
    assert objection(address, 443)


def test_public_addresses_are_allowed_on_ports_80_and_443_only() -> None:
    for address in ("1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"):
        assert is_public(address)
        assert objection(address, 80) == objection(address, 443) == ""
        assert objection(address, 22)
