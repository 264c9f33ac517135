"""A node that speaks HTTPS to all clients: those that trust its certificate, its own commands, and a certificate that changes."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import orjson
import pytest

from tests import certificates
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Path]]:
    """A node with a certificate, and the folder where that is."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = certificates.write(folder)
    with Swarm(tmp_path_factory.mktemp("nodes")) as swarm:
        settings = {"tls_cert": str(chain), "tls_key": str(key), "workers": request.param}
        yield swarm.start(Start("secured", {"node": settings})), folder


def command(node: Node, *arguments: str) -> str:
    """Run a command, which finds the node by its data directory."""
    line = [sys.executable, "-m", "node", *arguments, "--data-dir", str(node.folder)]
    return subprocess.run(line, capture_output=True, check=True, text=True).stdout


def serial(node: Node) -> str:
    """Return the certificate that a new connection is shown now."""
    host, _, port = node.http.removeprefix("https://").rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


async def test_openais_client_and_the_commands_ask_a_node_over_https(
    node: tuple[Node, Path], client: Client
) -> None:
    secured, folder = node
    assert secured.http.startswith("https://127.0.0.1:")
    async with running() as worker:
        url = f"{worker.url}/v1/chat/completions" if "/v1" not in worker.url else worker.url
        await asyncio.to_thread(command, secured, "register", "mine", "tiny", url)
        key = (await asyncio.to_thread(command, secured, "key", "create", "ann")).strip()
        listed = json.loads(await asyncio.to_thread(command, secured, "models", "--json"))
        assert [row["model"] for row in listed] == ["tiny"]
        trusting = ssl.create_default_context(cafile=folder / "cert.pem")
        http = openai.DefaultAsyncHttpxClient(verify=trusting)
        async with openai.AsyncOpenAI(
            base_url=f"{secured.http}/v1", api_key=key, http_client=http
        ) as ai:
            messages = [{"role": "user", "content": "hi"}]
            for _ in range(4):
                stream = await ai.chat.completions.create(
                    model="tiny", messages=messages, stream=True
                )
                pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
                assert "how are you" in "".join(pieces)
            [model] = (await ai.models.list()).data
            assert orjson.loads(model.model_dump_json())["url"].startswith("https://")
        await asyncio.to_thread(command, secured, "unregister", "mine")


async def test_a_certificate_that_is_renewed_is_shown_by_every_process(
    node: tuple[Node, Path],
) -> None:
    secured, folder = node
    before = {await asyncio.to_thread(serial, secured) for _ in range(6)}
    assert len(before) == 1
    certificates.write(folder)

    async def renewed() -> bool:
        return before.isdisjoint({await asyncio.to_thread(serial, secured) for _ in range(12)})

    seconds = await until(renewed, within=4, otherwise="every process shows the new certificate")
    show("a renewed certificate", seconds=seconds)
    assert await asyncio.to_thread(command, secured, "status")


async def test_plain_http_is_not_answered(node: tuple[Node, Path]) -> None:
    host, _, port = node[0].http.removeprefix("https://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert not (await reader.read()).startswith(b"HTTP")
    writer.transport.abort()
