"""Batches over real nodes: OpenAI's own client, `modelvine provide batch`, and whatever is killed meanwhile."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import openai
import orjson
import pytest
from openai.types import Batch

from node.demo.play import Actor
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm, python
from tests.swarm.waiting import until

pytestmark = pytest.mark.swarm

MODEL = "answers"


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    """Two nodes: one with the provider, one that is asked."""
    return swarm.start_all("provider", "entry")


def provide(swarm: Swarm, node: Node) -> Actor:
    """Start the provider at a node; the same files again where it was there before."""
    where = (
        "--node",
        node.http,
        "--data-dir",
        str(node.folder),
        "--data",
        str(swarm.folder / "batch"),
    )
    return swarm.start_program("batches", *python("-m", "node", "provide", "batch", *where))


@pytest.fixture
async def serving(swarm: Swarm, nodes: list[Node], client: Client) -> Actor:
    """A worker at the node that is asked."""
    worker = swarm.start_worker("worker", "--delay-first", "0.05")
    await client.register(nodes[1], "p", [MODEL], worker.fields["url"])
    await client.listed(nodes, MODEL)
    return worker


def lines(count: int, *more: bytes) -> bytes:
    """Return a file of so many requests with ids of their own, and more lines."""
    asked = [
        orjson.dumps(
            {
                "custom_id": f"line {number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{number}"}]},
            }
        )
        for number in range(count)
    ]
    return b"\n".join((*asked, *more)) + b"\n"


async def begun(ask: openai.AsyncOpenAI, content: bytes) -> Batch:
    file = await ask.files.create(file=("lines.jsonl", content), purpose="batch")
    return await ask.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


async def over(ask: openai.AsyncOpenAI, batch: Batch) -> Batch:
    """Wait for the end of a batch, and return it."""
    found = batch

    async def done() -> bool:
        nonlocal found
        try:
            found = await ask.batches.retrieve(batch.id)
        except openai.InternalServerError:
            return False
        return found.status in ("completed", "failed", "expired", "cancelled")

    await until(done, within=30, otherwise="the batch is not over")
    return found


async def rows(ask: openai.AsyncOpenAI, file: str | None) -> Sequence[dict[str, Any]]:
    if file is None:
        return []
    return [orjson.loads(line) for line in (await ask.files.content(file)).content.splitlines()]


def asking(node: Node) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{node.http}/v1", api_key="x", max_retries=0)


async def test_each_line_is_answered_and_a_bad_one_is_its_own_error(
    swarm: Swarm, nodes: list[Node], serving: Actor, client: Client
) -> None:
    provider = provide(swarm, nodes[0])
    await client.listed(nodes, "batch")
    again = lines(1).strip()
    async with asking(nodes[1]) as ask:
        batch = await over(ask, await begun(ask, lines(40, b"{broken", again)))
        assert batch.status == "completed"
        assert batch.request_counts is not None
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (42, 40, 2)
        answered = await rows(ask, batch.output_file_id)
        assert [row["custom_id"] for row in answered] == [f"line {n}" for n in range(40)]
        assert all(row["response"]["body"]["choices"] for row in answered)
        wrong = await rows(ask, batch.error_file_id)
        assert [row["error"]["code"] for row in wrong] == [
            "invalid_json_line",
            "duplicate_custom_id",
        ]
    provider.process.terminate()
    assert provider.process.wait(10) == 0


async def test_what_is_killed_in_the_middle_costs_no_line_and_doubles_none(
    swarm: Swarm, nodes: list[Node], serving: Actor, client: Client
) -> None:
    provider = provide(swarm, nodes[0])
    await client.listed(nodes, "batch")
    async with asking(nodes[1]) as ask:
        batch = await begun(ask, lines(300))

        async def begun_well() -> bool:
            counts = (await ask.batches.retrieve(batch.id)).request_counts
            return counts is not None and counts.completed >= 40

        await until(begun_well, within=15, otherwise="no line is answered")
        swarm.kill(provider)
        with pytest.raises(openai.InternalServerError) as away:
            await ask.batches.retrieve(batch.id)
        assert away.value.status_code == 503
        assert "retry-after" in away.value.response.headers
        provider = provide(swarm, nodes[0])
        done = await over(ask, batch)
        assert done.status == "completed"
        found = Counter(row["custom_id"] for row in await rows(ask, done.output_file_id))
        assert found == Counter(f"line {n}" for n in range(300))
        assert done.error_file_id is None
    provider.process.terminate()
    assert provider.process.wait(10) == 0
