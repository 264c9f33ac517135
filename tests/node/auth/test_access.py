"""Access to a node: this machine and holders of the token may change it; pages of other origins may not."""

import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from node.auth.access import Access, is_own_address, same_machine
from node.auth.errors import AuthError, KeyUnknown
from node.auth.keys import ApiKey
from node.auth.principal import PRINCIPAL
from node.auth.socket_owner import UNASKED
from node.config.settings import KeylessAccess
from node.config.web import WebSettings
from node.faces.app import application
from node.lane.request import LaneRequest, read_head
from node.listeners import serve

TOKEN = "a-token-of-sufficient-length-for-anybody"


@asynccontextmanager
async def guarded(access):
    """A real server with one path to read and one to change."""

    async def read(request):
        return web.Response()

    async def change(request):
        access.check_change(request)
        return web.Response()

    routes = [web.get("/read", read), web.post("/read", read), web.post("/change", change)]
    listener = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as closing:
        await serve(application(routes, access.admit), listener, closing)
        session = aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield await closing.enter_async_context(session)


@pytest.fixture
async def node():
    async with guarded(
        Access(token=TOKEN, keyless=KeylessAccess.EVERYBODY, names=["vine.example"])
    ) as session:
        yield session


async def status(call):
    async with call as response:
        return response.status


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:6100",
        "localhost:6100",
        "LOCALHOST",
        "[::1]:6100",
        "192.168.7.9",
        "vine.example:80",
    ],
)
async def test_a_node_is_addressed_by_its_addresses_and_its_own_names(node, host):
    assert await status(node.get("/read", headers={"Host": host})) == 200


@pytest.mark.parametrize(
    "host", ["evil.example:6100", "localhost.evil.example", "127.0.0.1.evil.example", "[::1"]
)
async def test_a_foreign_name_that_points_to_the_node_is_refused(node, host):
    assert await status(node.get("/read", headers={"Host": host})) == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://[", "file://"]
)
async def test_a_request_from_a_page_of_another_origin_is_refused(node, origin):
    assert await status(node.post("/read", headers={"Origin": origin}, json={})) == 403


async def test_a_page_of_the_nodes_own_origin_may_send(node):
    headers = {"Host": "localhost:6100", "Origin": "http://localhost:6100"}
    assert await status(node.post("/change", headers=headers, json={})) == 200


async def test_a_process_of_the_nodes_own_user_may_change_the_node(node):
    assert await status(node.post("/change", json={})) == 200


class Table:
    """Socket table in which every caller is a process of one user."""

    def __init__(self, uid):
        self.uid, self.asked = uid, 0

    def owner(self, here, there):
        self.asked += 1
        assert (here.address, there.address) == ("127.0.0.1", "127.0.0.1")
        return self.uid


@pytest.mark.parametrize(
    ("uid", "expected"), [(0, 200), (os.geteuid(), 200), (os.geteuid() + 1, 403), (None, 403)]
)
async def test_a_caller_over_loopback_is_judged_by_the_user_of_its_process(uid, expected):
    async with guarded(
        Access(token=TOKEN, keyless=KeylessAccess.EVERYBODY, sockets=Table(uid))
    ) as node:
        assert await status(node.post("/change", json={})) == expected
        assert await status(node.get("/read")) == 200
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert await status(node.post("/change", json={}, headers=headers)) == 200


@pytest.mark.parametrize(
    ("uid", "status_"),
    [
        (0, 200),
        (os.geteuid(), 200),
        (1_000, 200),
        (60_000, 200),
        # Of a proxy, a service, the user `nobody`, a container.
        (33, 401),
        (999, 401),
        (65_534, 401),
        (100_033, 401),
        (None, 401),
    ],
)
async def test_people_of_this_machine_ask_without_a_key_and_services_do_not(uid, status_):
    async with guarded(Access(token=TOKEN, sockets=Table(uid))) as node:
        assert await status(node.get("/read")) == status_
        assert await status(node.get("/read", headers={"X-Forwarded-For": "192.0.2.1"})) == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        # `NoKeys` does not know the token; `KeyRing` counts it among its keys.
        assert await status(node.get("/read", headers=headers)) == status_


async def test_the_kernel_is_asked_for_the_calling_user_once_for_each_connection():
    table = Table(0)
    async with guarded(Access(token=TOKEN, sockets=table)) as node:
        for _ in range(5):
            assert await status(node.get("/read")) == 200
    assert table.asked == 1


class Connection:
    """Connection from this machine whose owner was not asked for yet."""

    address = "127.0.0.1"
    owner = UNASKED

    def __init__(self) -> None:
        self.transport = self

    def get_extra_info(self, _):
        return ("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("uid", "keyless", "line", "admitted"),
    [
        (1_000, "machine", b"X: y", True),
        (1_000, "machine", b"Authorization: Bearer k", False),
        (1_000, "machine", b"X-Api-Key: k", False),
        (1_000, "machine", b"X-Forwarded-For: 192.0.2.1", False),
        (33, "machine", b"X: y", False),
        (33, "everybody", b"X: y", True),
        (33, "everybody", b"X-Api-Key: k", False),
        (1_000, "nobody", b"X: y", False),
    ],
)
def test_a_head_is_remembered_as_admitted_only_if_no_key_is_needed_or_shown(
    uid, keyless, line, admitted
):
    head = read_head(b"POST /v1/a HTTP/1.1\r\nHost: a\r\n%b\r\nContent-Length: 0\r\n\r\n" % line)
    access = Access(token=TOKEN, names=["a"], sockets=Table(uid), keyless=KeylessAccess(keyless))
    with suppress(AuthError):
        access.admit(LaneRequest(head, b"", None, Connection()))
    assert head.admitted == admitted


def test_callers_with_limits_by_address_are_checked_with_each_request():
    head = read_head(b"POST /v1/a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    settings = WebSettings(names=("a",), rpm_per_address=1)
    access = Access(
        token=TOKEN, settings=settings, sockets=Table(None), keyless=KeylessAccess.EVERYBODY
    )
    request = LaneRequest(head, b"", None, Connection())
    access.admit(request)
    assert (head.admitted, request[PRINCIPAL].address) == (False, "127.0.0.1")


class OneKey:
    """Site with one key, until that is removed."""

    key = ApiKey(name="ann", hash="ab" * 32)

    def find(self, _):
        return self.key


def test_a_key_is_looked_up_with_each_request_even_if_the_head_is_the_same():
    head = read_head(
        b"POST /v1/a HTTP/1.1\r\nHost: a\r\nX-Api-Key: mv_ann\r\nContent-Length: 0\r\n\r\n"
    )
    keys, connection = OneKey(), Connection()
    access = Access(token=TOKEN, names=["a"], sockets=Table(1_000), keys=keys)
    for _ in range(2):
        request = LaneRequest(head, b"", None, connection)
        access.admit(request)
        assert request[PRINCIPAL].name == "ann"
    keys.key = None
    with pytest.raises(KeyUnknown):
        access.admit(LaneRequest(head, b"", None, connection))


@pytest.mark.parametrize(("keyless", "status_"), [("nobody", 401), ("everybody", 200)])
async def test_the_operator_decides_who_needs_no_key(keyless, status_):
    access = Access(token=TOKEN, sockets=Table(33), keyless=KeylessAccess(keyless))
    async with guarded(access) as node:
        assert await status(node.get("/read")) == status_


async def test_a_refused_caller_is_told_what_to_show():
    async with (
        guarded(Access(token=TOKEN, keyless=KeylessAccess.EVERYBODY, sockets=Table(None))) as node,
        node.post("/change", json={}) as refused,
    ):
        message = (await refused.json())["message"]
    assert "Authorization: Bearer" in message
    assert "control.token" in message


async def test_a_change_without_a_body_needs_no_content_type(node):
    assert await status(node.post("/change")) == 200


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "text/html"])
async def test_a_change_must_come_as_json(node, kind):
    call = node.post("/change", data=b"{}", headers={"Content-Type": kind})
    assert await status(call) == 415


CURL = ["application/x-www-form-urlencoded", "application/octet-stream", ""]


@pytest.mark.parametrize("kind", CURL)
async def test_the_content_types_that_curl_sends_are_taken_for_json(node, kind):
    call = node.post("/change", data=b"{}", headers={"Content-Type": kind})
    assert await status(call) == 200


async def test_a_body_without_a_type_is_taken_for_json(node):
    call = node.post("/change", data=b"{}", skip_auto_headers=["Content-Type"])
    assert await status(call) == 200


@pytest.mark.parametrize("kind", [*CURL, "application/json", "text/plain"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_no_page_of_another_origin_changes_the_node_whatever_type_it_names(
    node, kind, origin
):
    headers = {"Content-Type": kind, "Origin": origin}
    assert await status(node.post("/change", data=b"{}", headers=headers)) == 403


@pytest.mark.parametrize("kind", [*CURL, "text/plain"])
@pytest.mark.parametrize(
    ("site", "given"),
    [
        ("cross-site", 403),
        ("same-site", 403),
        ("nonsense", 403),
        ("same-origin", 200),
        ("none", 200),
    ],
)
async def test_sec_fetch_site_decides_where_a_browser_sends_no_origin(node, kind, site, given):
    headers = {"Content-Type": kind, "Sec-Fetch-Site": site}
    expected = 415 if kind == "text/plain" and given == 200 else given
    assert await status(node.post("/change", data=b"{}", headers=headers)) == expected
    assert await status(node.post("/change", headers={"Sec-Fetch-Site": site})) == given


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Sec-Fetch-Site": "same-site"}, 401),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 401),
        ({"Origin": "null"}, 401),
        ({"Origin": "https://good.example", "Sec-Fetch-Site": "cross-site"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({}, 200),
    ],
)
async def test_a_page_of_another_origin_gets_nothing_from_a_browser_on_this_machine(headers, given):
    access = Access(token=TOKEN, settings=WebSettings(origins=("https://good.example",)))
    async with guarded(access) as node:
        assert await status(node.get("/read", headers=headers)) == given


@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"]
)
async def test_a_caller_behind_a_proxy_on_this_machine_is_not_on_this_machine(node, header):
    headers = {header: "203.0.113.9"}
    assert await status(node.post("/change", json={}, headers=headers)) == 403


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Basic {TOKEN}", 403),
        ("Bearer ", 403),
        ("Bearer wrong", 403),
        (f"Bearer {TOKEN}x", 403),
    ],
)
async def test_the_control_token_allows_changes_from_another_machine(node, given, expected):
    headers = {"X-Forwarded-For": "203.0.113.9", "Authorization": given}
    assert await status(node.post("/change", json={}, headers=headers)) == expected


@pytest.mark.parametrize("told", ["127.0.0.1", "::1", "192.0.2.7", "nonsense", ""])
async def test_a_caller_behind_a_trusted_proxy_is_not_a_person_on_this_machine(told):
    web_ = WebSettings(trusted_proxies=("127.0.0.1",))
    async with guarded(Access(token=TOKEN, settings=web_, sockets=Table(0))) as node:
        assert await status(node.get("/read", headers={"X-Forwarded-For": told})) == 401
        assert await status(node.post("/change", json={}, headers={"X-Forwarded-For": told})) == 401
        # Without the header, the kernel's answer counts.
        assert await status(node.get("/read")) == 200


@pytest.mark.parametrize(
    ("uid", "trusted", "told", "address"),
    [
        (33, "127.0.0.1", "192.0.2.7", "192.0.2.7"),
        (33, "127.0.0.1", "2001:db8::7", "2001:db8::/64"),
        (33, "127.0.0.1", "nonsense", "127.0.0.1"),
        (33, "10.0.0.1", "192.0.2.7", "127.0.0.1"),
        (33, "127.0.0.1", None, "127.0.0.1"),
        (0, "127.0.0.1", "192.0.2.7", "192.0.2.7"),
        # A person on this machine.
        (0, "127.0.0.1", None, ""),
    ],
)
async def test_callers_without_a_key_are_told_apart_by_address(uid, trusted, told, address):
    addresses = []

    async def read(request):
        addresses.append(request[PRINCIPAL].address)
        return web.Response()

    access = Access(
        token=TOKEN,
        keyless=KeylessAccess.EVERYBODY,
        settings=WebSettings(trusted_proxies=(trusted,)),
        sockets=Table(uid),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as closing:
        await serve(application([web.get("/read", read)], access.admit), listener, closing)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/read"
        headers = {"X-Forwarded-For": told} if told is not None else {}
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            assert answer.status == 200
    assert addresses == [address]


async def test_an_empty_token_opens_nothing():
    async with guarded(Access(token="", keyless=KeylessAccess.EVERYBODY)) as node:
        headers = {"X-Forwarded-For": "203.0.113.9", "Authorization": "Bearer "}
        assert await status(node.post("/change", json={}, headers=headers)) == 403


@pytest.mark.parametrize(
    ("caller", "here", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("10.0.0.1", "127.0.0.1", False),
        ("nonsense", "nonsense", False),
    ],
)
def test_a_caller_is_this_machine_if_its_address_is_loopback_or_the_called_one(caller, here, same):
    assert same_machine(caller, here) is same


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost", "localhost.", "127.0.0.1", "127.9.9.9", "::1"]
)
def test_loopback_is_this_machine(host):
    assert is_own_address(host)


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "2001:db8::1", "0.0.0.0", "::", "224.0.0.1", "example.com", ""]
)
def test_no_other_address_or_name_is_this_machine(host):
    assert not is_own_address(host)


def settings(**options):
    return Access(token=TOKEN, keyless=KeylessAccess.EVERYBODY, settings=WebSettings(**options))


@pytest.mark.parametrize(
    ("names", "host", "expected"),
    [
        (("proxy.example",), "proxy.example", 200),
        (("Proxy.Example.",), "proxy.example:8080", 200),
        (("proxy.example",), "evil.example", 403),
        (("proxy.example",), "sub.proxy.example", 403),
        (("host.docker.internal",), "host.docker.internal:6100", 200),
        (("*",), "evil.example", 200),
        ((), "host.docker.internal", 403),
    ],
)
async def test_the_operator_says_by_which_other_names_a_node_may_be_addressed(
    names, host, expected
):
    async with (
        guarded(settings(names=names)) as node,
        node.get("/read", headers={"Host": host}) as got,
    ):
        assert got.status == expected
        assert expected == 200 or "web.names" in (await got.json())["message"]


@pytest.mark.parametrize("names", [("proxy.example",), ("*",)])
async def test_a_request_to_a_proxys_name_changes_nothing_without_the_token(names):
    """Such a name may lead a browser of the node's own user here."""
    headers = {"Host": "proxy.example", "Origin": "http://proxy.example"}
    async with guarded(settings(names=names)) as node:
        assert await status(node.post("/read", json={}, headers=headers)) == 200
        assert await status(node.post("/change", json={}, headers=headers)) == 403
        headers["Authorization"] = f"Bearer {TOKEN}"
        assert await status(node.post("/change", json={}, headers=headers)) == 200


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (("https://chat.example",), "https://chat.example", "https://chat.example"),
        (("https://Chat.Example",), "https://chat.example", "https://chat.example"),
        (("*",), "https://evil.example", "*"),
        (("*",), "null", "*"),
    ],
)
async def test_pages_of_origins_that_the_operator_names_may_ask_and_read(origins, origin, allowed):
    async with guarded(settings(origins=origins)) as node:
        for method, path in (("GET", "/read"), ("POST", "/read"), ("GET", "/nothing")):
            async with node.request(method, path, headers={"Origin": origin}) as answer:
                assert answer.status == (404 if path == "/nothing" else 200)
                assert answer.headers.getall("Access-Control-Allow-Origin") == [allowed]
                assert answer.headers["Access-Control-Expose-Headers"] == "*"
                assert answer.headers.get("Vary") == (None if allowed == "*" else "Origin")


async def test_a_preflight_request_is_told_what_a_page_may_send():
    headers = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type,x-modelvine-project",
    }
    async with guarded(settings(origins=("https://chat.example",))) as node:
        async with node.options("/read", headers=headers) as answer:
            assert answer.status == 200
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]
            names = answer.headers["Access-Control-Allow-Headers"]
            assert names == headers["Access-Control-Request-Headers"]
            assert "Access-Control-Allow-Credentials" not in answer.headers
        headers["Origin"] = "https://evil.example"
        async with node.options("/read", headers=headers) as answer:
            assert answer.status == 403
            assert "web.origins" in (await answer.json())["message"]
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origins", [(), ("https://chat.example",)])
async def test_pages_of_other_origins_are_refused_and_cannot_read(origins):
    headers = {"Origin": "https://evil.example"}
    async with guarded(settings(origins=origins)) as node:
        async with node.post("/read", json={}, headers=headers) as answer:
            assert answer.status == 403
            assert "web.origins" in (await answer.json())["message"]
        async with node.get("/read", headers=headers) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origins", [("https://chat.example",), ("*",)])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_page_of_an_allowed_origin_changes_nothing_without_the_token(origins, kind):
    """The page may run in a browser of the node's own user."""
    headers = {"Origin": "https://chat.example", "Content-Type": kind}
    async with guarded(settings(origins=origins)) as node:
        assert await status(node.post("/change", data=b"{}", headers=headers)) == 403
        headers |= {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        assert await status(node.post("/change", data=b"{}", headers=headers)) == 200
