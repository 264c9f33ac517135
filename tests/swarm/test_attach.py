"""`modelvine attach` beside a real node: workers are recognised, watched, and withdrawn at the end."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm, python
from tests.swarm.waiting import show, until
from tests.workers import openai_worker, tgi_worker

pytestmark = pytest.mark.swarm


class Attach:
    """A running `modelvine attach`, and what it has written."""

    def __init__(self, process: asyncio.subprocess.Process, written: Path) -> None:
        self.process = process
        self._written = written

    @property
    def said(self) -> str:
        return self._written.read_text()

    async def says(self, text: str, *, within: float = 15) -> float:
        return await until(
            lambda: text in self.said, within=within, otherwise=f"it says: {self.said}"
        )

    async def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 10)


@asynccontextmanager
async def attached(node: Node, folder: Path, *arguments: str) -> AsyncIterator[Attach]:
    options = ("--node", node.http, "--data-dir", str(node.folder))
    written = folder / "attach.out"
    with written.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *python("-u", "-m", "node", "attach", *arguments, *options), stdout=out, stderr=out
        )
    try:
        yield Attach(process, written)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_real_llama_cpp_is_found_served_watched_and_withdrawn(
    three: list[Node], swarm: Swarm, client: Client, tmp_path: Path
) -> None:
    worker = swarm.start_worker("attached", "--port", "0", module="node.demo.worker")
    model, url = worker.fields["model"], worker.ready.split()[1].removesuffix("/v1")
    port = url.rpartition(":")[2]
    async with attached(three[0], tmp_path, url, "--project", "found") as attach:
        await attach.says("monitoring it")
        assert re.search(r"yes +openai: GET /v1/models: 200, 1 model, llama\.cpp", attach.said)
        await client.listed(three, model)
        entry = await client.get(three[1], f"/v1/models/{model}")
        assert entry["context_length"] > 0
        assert entry["architecture"]["input_modalities"] == ["text"]
        short = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        assert (await client.post(three[2], "/v1/chat/completions", short)).status == 200
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        body = {"model": model, "messages": [{"role": "user", "content": [image]}]}
        refused = await client.post(three[2], "/v1/chat/completions", body)
        assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (
            400,
            "unsupported_parameter",
        )
        await asyncio.to_thread(swarm.kill, worker)
        gone = await attach.says(f"withdrew found/{model}")
        await until(lambda: _missing(client, three[1], model), within=5, otherwise="still listed")
        swarm.start_worker("attached again", "--port", port, module="node.demo.worker")
        back = await attach.says("the worker is back")
        await client.listed(three, model)
        assert await attach.end() == 0
        assert attach.said.count(f"withdrew found/{model}") == 2
    await until(lambda: _missing(client, three[1], model), within=5, otherwise="still listed")
    show("attach to llama.cpp", gone_after=gone, back_after=back)


async def test_models_that_come_and_go_at_a_worker_come_and_go_in_the_network(
    three: list[Node], client: Client, tmp_path: Path
) -> None:
    async with openai_worker.running() as worker:
        worker.fail(listing=b'{"data":[{"id":"early"},{"id":"stays"}]}')
        async with attached(three[0], tmp_path, worker.url) as attach:
            await client.listed(three, "early", "stays")
            worker.fail(listing=b'{"data":[{"id":"stays"},{"id":"late"}]}')
            await client.listed(three, "late", "stays", within=10)
            await until(
                lambda: _missing(client, three[0], "early"), within=5, otherwise="still there"
            )
            assert await attach.end(signal.SIGTERM) == 0
        await until(lambda: _missing(client, three[0], "stays"), within=5, otherwise="still there")


async def test_a_worker_of_another_protocol_is_found_by_its_address_alone(
    three: list[Node], client: Client, tmp_path: Path
) -> None:
    async with tgi_worker.running() as worker:
        worker.fail(info=b'{"model_id":"org/strange","version":"3","max_total_tokens":4096}')
        async with attached(three[0], tmp_path, worker.url.removeprefix("http://")) as attach:
            await attach.says("yes  tgi: GET /info: 200, TGI 3 with org/strange")
            await client.listed(three, "org/strange")
            assert (await client.chat(three[1], "org/strange")).status == 200
            assert await attach.end() == 0


@pytest.mark.parametrize("status", [502, 503])
async def test_a_worker_that_still_loads_or_starts_behind_a_proxy_is_waited_for(
    three: list[Node], client: Client, tmp_path: Path, status: int
) -> None:
    async with openai_worker.running() as worker:
        worker.fail(status=status)
        async with attached(three[0], tmp_path, worker.url, "--dialect", "openai") as attach:
            await attach.says("waiting until it is ready")
            worker.fail(listing=b'{"data":[{"id":"slow%d"}]}' % status)
            await client.listed(three, f"slow{status}", within=10)
            assert await attach.end() == 0


async def _missing(client: Client, node: Node, model: str) -> bool:
    return model not in await client.models(node)
