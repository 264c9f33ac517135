"""Callers behind real proxies that the node trusts: each is known by its own address, and forged addresses are ignored."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.test_proxies import (  # noqa: F401 (a fixture)
    DEPLOY,
    SITE,
    as_deployed,
    free_port,
    nginx,
    possible,
    program,
)
from tests.workers.openai_worker import OpenAIWorker

pytestmark = [pytest.mark.swarm, pytest.mark.usefixtures("possible")]

CALLERS = ("127.0.0.5", "127.0.0.6")
TOLD = SITE.format(headers="proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;")
NOBODY: Mapping[str, str] = {}
RPM = 1
"""Requests a minute of one address, at each process."""

TIMES = 6


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def processes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path) as swarm:
        yield swarm


def opened(swarm: Swarm, processes: int, **web: object) -> Node:
    """Run a node that is open to all callers, to each address once a minute."""
    web_settings = {"rpm_per_address": RPM, "names": ["models.example"], **web}
    return swarm.start(
        Start("node", {"node": {"workers": processes, "open": "everybody"}, "web": web_settings})
    )


async def ask(url: str, caller: str, headers: Mapping[str, str] = NOBODY) -> int:
    """Ask for a chat from an address, on a connection of its own."""
    body = {"model": "tiny", "messages": list(PROMPT)}
    connector = aiohttp.TCPConnector(local_addr=(caller, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        assert response.status in (200, 429), await response.text()
        if response.status == 429:
            assert 1 <= int(response.headers["Retry-After"]) <= 60
        return response.status


async def passed(url: str, caller: str, *, forging: bool = False) -> int:
    """Return how many of some requests are answered."""
    names = ("X-Forwarded-For", "X-Real-IP")
    forwarded = [
        dict.fromkeys(names, f"192.0.2.{number}") if forging else NOBODY for number in range(TIMES)
    ]
    return [await ask(url, caller, headers) for headers in forwarded].count(200)


@pytest.mark.parametrize("deployed", [False, True], ids=["plain", "sample"])
async def test_callers_behind_nginx_are_limited_separately_and_cannot_forge_their_address(
    swarm: Swarm,
    processes: int,
    client: Client,
    worker: OpenAIWorker,
    tmp_path: Path,
    deployed: bool,
) -> None:
    node = opened(swarm, processes, trusted_proxies=["127.0.0.1"])
    await client.register(node, "mine", ["tiny"], worker.url)
    with as_deployed(node, tmp_path) if deployed else nginx(node, tmp_path, TOLD) as url:
        for caller in CALLERS:
            assert 1 <= await passed(url, caller, forging=True) <= processes * RPM
    assert not any(caller in node.log for caller in CALLERS)


async def test_an_untrusted_sender_counts_as_one_address_whatever_headers_it_sends(
    swarm: Swarm, processes: int, client: Client, worker: OpenAIWorker
) -> None:
    node = opened(swarm, processes, trusted_proxies=["127.0.0.1"])
    await client.register(node, "mine", ["tiny"], worker.url)
    assert 1 <= await passed(node.http, CALLERS[0], forging=True) <= processes * RPM
    # People on this machine are not counted, as long as their requests name no other caller.
    assert await passed(node.http, CALLERS[0]) == TIMES


async def test_haproxy_tells_the_callers_address_by_the_proxy_protocol(
    swarm: Swarm,
    processes: int,
    client: Client,
    worker: OpenAIWorker,
    tmp_path: Path,
) -> None:
    node = opened(swarm, processes, trusted_proxies=["127.0.0.2"], proxy_protocol=True)
    await client.register(node, "mine", ["tiny"], worker.url)
    port, written = free_port(), tmp_path / "haproxy.cfg"
    sample = (DEPLOY / "haproxy.cfg").read_text().replace("bind :443", f"bind 127.0.0.1:{port}")
    written.write_text(sample.replace("127.0.0.1:6100", node.http[7:]))
    with program(["haproxy", "-db", "-f", str(written)], port, tmp_path) as url:
        for caller in CALLERS:
            assert 1 <= await passed(url, caller, forging=True) <= processes * RPM
        # The proxy runs as root here, but its callers do not count as root.
        async with client.session.post(f"{url}/api/v1/drain", json={}) as response:
            assert response.status == 403
    with pytest.raises(aiohttp.ClientError):
        await ask(node.http, "127.0.0.2")
    assert await passed(node.http, CALLERS[0]) == TIMES
    assert not any(caller in node.log for caller in CALLERS)
