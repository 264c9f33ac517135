"""Proxies as their packages run them, under users of their own: callers need a key, and only the operator may control."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import orjson
import pytest

from tests.swarm.client import PROMPT, Client, events_of
from tests.swarm.nodes import Node, Start, Swarm
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

NOBODY = "nobody"
NAME = "models.example"
DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = ("nginx", "haproxy", "socat")
CONTROL = (
    "/api/v1/drain",
    "/api/v1/undrain",
    "/api/v1/recognise",
    "/api/v0/ai/project/register",
    "/api/v0/ai/project/unregister",
    "/api/v0/ai/model/register",
    "/api/v0/ai/model/unregister",
    "/api/v0/swarm/connect",
    "/api/v0/swarm/disconnect",
    "/api/v0/bootstrap/add",
    "/api/v0/bootstrap/rm",
)
BETWEEN = 0.2
"""Seconds between two words of the worker."""

NGINX = """
user www-data;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 768; }}
http {{
    access_log off;
    {site}
}}
"""
SITE = """
server {{
    listen 80;
    location / {{
        proxy_pass http://127.0.0.1:6100;
        {headers}
    }}
}}
"""
HAPROXY = """
global
    user haproxy
    group haproxy
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
frontend here
    bind 127.0.0.1:{port}
    default_backend node
backend node
    server node {node}
"""


@contextmanager
def program(
    command: list[str], port: int, folder: Path, *, user: str | None = None
) -> Iterator[str]:
    """Run a proxy until the block is left; yield its URL."""
    with (folder / f"{Path(command[0]).name}-{port}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, user=user)
        try:
            until = time.monotonic() + 20
            while True:
                assert process.poll() is None, Path(log.name).read_text()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert time.monotonic() < until, Path(log.name).read_text()
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def nginx(node: Node, folder: Path, site: str = SITE.format(headers="")) -> Iterator[str]:
    port, written = free_port(), folder / "nginx.conf"
    site = site.replace("127.0.0.1:6100", node.http[7:]).replace("listen 80", f"listen {port}")
    written.write_text(NGINX.format(folder=folder, site=site))
    with program(["nginx", "-c", str(written)], port, folder) as url:
        yield url


@contextmanager
def caddy(node: Node, folder: Path) -> Iterator[str]:
    if shutil.which("caddy") is None:
        pytest.skip("THE SAMPLE FOR CADDY IS NOT TESTED: there is no caddy")
    port, written = free_port(), folder / "Caddyfile"
    site = (DEPLOY / "Caddyfile").read_text().replace("127.0.0.1:6100", node.http[7:])
    site = site.replace(f"\n{NAME} {{", f"\nhttp://{NAME}:{port} {{")
    written.write_text("{\n\tadmin off\n}\n" + site)
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(written)]
    with program(command, port, folder) as url:
        yield url


@contextmanager
def haproxy(node: Node, folder: Path) -> Iterator[str]:
    port, written = free_port(), folder / "haproxy.cfg"
    written.write_text(HAPROXY.format(port=port, node=node.http[7:]))
    with program(["haproxy", "-db", "-f", str(written)], port, folder) as url:
        yield url


@contextmanager
def socat(node: Node, folder: Path) -> Iterator[str]:
    port = free_port()
    ends = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork", f"TCP:{node.http[7:]}"
    with program(["socat", *ends], port, folder, user=NOBODY) as url:
        yield url


@pytest.fixture(scope="module")
def possible() -> None:
    """Skip these tests where they cannot run, with the reason in one line."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0 or lacking:
        lacking += ["root"] * (os.geteuid() != 0)
        pytest.skip(f"THE TESTS OF PROXIES DO NOT RUN: they need {', '.join(lacking)}")


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def node(
    request: pytest.FixtureRequest, possible: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node of one process, and one with a helper."""
    with Swarm(tmp_path_factory.mktemp("nodes")) as swarm:
        yield swarm.start(
            Start("node", {"node": {"workers": request.param}, "web": {"names": [NAME]}})
        )


@pytest.fixture(scope="module", params=[nginx, haproxy, socat], ids=PROGRAMS)
def proxy(
    request: pytest.FixtureRequest, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Each proxy with as little configuration as it takes."""
    run: Callable[..., Iterator[str]] = request.param
    with ExitStack() as closing:
        yield closing.enter_context(run(node, tmp_path_factory.mktemp("proxy")))


@pytest.fixture
async def worker(node: Node, client: Client) -> OpenAIWorker:
    """A worker that speaks slowly, registered by the node's own user."""
    async with running() as worker:
        worker.fail(delay_between=BETWEEN)
        await client.register(node, "mine", ["slow"], worker.url)
        yield worker
        await client.unregister(node, "mine")


@pytest.fixture
async def key(node: Node, client: Client) -> AsyncIterator[str]:
    """A user's key, made by the node's own user."""
    created = await client.post(node, "/api/v1/keys", {"keys": [{"name": "ann"}]})
    assert created.status == 200, created.body
    yield orjson.loads(created.body)["keys"][0]["key"]
    await client.post(node, "/api/v1/keys/ann/revoke", {})


async def test_every_control_call_through_a_proxy_is_refused(
    proxy: str, client: Client, node: Node
) -> None:
    for path in CONTROL:
        async with client.session.post(proxy + path, json={}) as response:
            assert response.status in (401, 403), (path, await response.text())
    assert (await client.get(node, "/readyz"))["status"] != "draining"


async def test_a_control_call_through_a_proxy_with_the_token_is_served(
    proxy: str, client: Client, node: Node
) -> None:
    token = (node.folder / "control.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    for path in ("/api/v1/drain", "/api/v1/undrain"):
        async with client.session.post(proxy + path, headers=headers) as response:
            assert response.status == 200, await response.text()


async def test_a_chat_through_a_proxy_needs_a_key_and_streams(
    proxy: str, client: Client, worker: OpenAIWorker, key: str
) -> None:
    await streams(client, proxy, key)
    for path in ("/v1/models", "/api/v1/nodes", "/metrics"):
        async with client.session.get(proxy + path) as response:
            assert response.status == 401, (path, await response.text())
    async with client.session.get(proxy + "/healthz") as response:
        assert response.status == 200


async def test_a_revoked_key_opens_no_process_of_the_node(
    proxy: str, client: Client, worker: OpenAIWorker, node: Node, key: str
) -> None:
    await streams(client, proxy, key)
    await client.post(node, "/api/v1/keys/ann/revoke", {})
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    for _ in range(10):
        async with client.session.get(f"{proxy}/v1/models", headers=headers) as response:
            assert (await response.json())["error"]["code"] == "key_revoked"


def with_host(node: Node, folder: Path) -> AbstractContextManager[str]:
    """Run nginx as it is usually configured."""
    return nginx(node, folder, SITE.format(headers="proxy_set_header Host $host;"))


def as_deployed(node: Node, folder: Path) -> AbstractContextManager[str]:
    """Run nginx with the sample."""
    return nginx(node, folder, (DEPLOY / "nginx.conf").read_text())


@pytest.mark.parametrize("run", [with_host, as_deployed, caddy])
async def test_a_proxy_may_pass_on_its_host_name_where_the_nodes_settings_list_it(
    run: Callable[[Node, Path], AbstractContextManager[str]],
    node: Node,
    client: Client,
    worker: OpenAIWorker,
    key: str,
    tmp_path: Path,
) -> None:
    with run(node, tmp_path) as url:
        await streams(client, url, key, NAME)
        for path in CONTROL:
            call = client.session.post(url + path, json={}, headers={"Host": NAME})
            async with call as response:
                assert response.status in (401, 403), (path, await response.text())


async def test_a_host_name_that_is_not_listed_is_refused_and_the_error_names_the_setting(
    node: Node, client: Client, tmp_path: Path
) -> None:
    with with_host(node, tmp_path) as url:
        headers = {"Host": "other.example"}
        async with client.session.get(f"{url}/v1/models", headers=headers) as response:
            assert response.status == 403
            assert "web.names" in await response.text()


async def streams(client: Client, url: str, key: str, name: str = "") -> None:
    """Ask for a chat under this host name, and check that its words come one after the other."""
    body = {"model": "slow", "messages": list(PROMPT), "stream": True}
    headers = {"Authorization": f"Bearer {key}", **({"Host": name} if name else {})}
    request = client.session.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    async with request as response:
        assert response.status == 200, await response.text()
        times = [time.monotonic() async for _ in events_of(response)]
    assert times[-1] - times[0] > 4 * BETWEEN


@pytest.mark.parametrize(("user", "status"), [("root", 200), (NOBODY, 401)])
def test_over_loopback_only_the_nodes_own_user_and_root_may_control_it(
    node: Node, user: str, status: int
) -> None:
    assert as_user(user, ASK, node) == str(status)


def as_user(user: str, program: str, node: Node) -> str:
    """Run a program with the user's rights and return what it says."""
    command = [sys.executable, "-Ic", program, str(pwd.getpwnam(user).pw_uid), node.http]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


ASK = """
import socket, sys
host, _, port = sys.argv[2][7:].rpartition(":")
import os; os.setuid(int(sys.argv[1]))
caller = socket.socket()
caller.connect((host, int(port)))
caller.sendall(b"POST /api/v1/undrain HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
print(caller.recv(1000).split()[1].decode())
"""
