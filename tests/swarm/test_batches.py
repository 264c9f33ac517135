"""Batches over real nodes: OpenAI's own client, `modelvine provide batch`, and processes that are killed meanwhile."""

import asyncio
import base64
import signal
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types import Batch

from node.demo.play import Actor
from tests.postgres_server import PostgresServer
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm, python
from tests.swarm.waiting import until

pytestmark = pytest.mark.swarm

MODEL = "answers"


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    """Two nodes: one with the provider, one that is asked."""
    return swarm.start_all("provider", "entry")


def provide(swarm: Swarm, node: Node, *more: str, folder: str = "batch") -> Actor:
    """Start the provider at a node, with the files of its last run if there was one."""
    options = (
        "--node",
        node.http,
        "--data-dir",
        str(node.folder),
        "--data",
        str(swarm.folder / folder),
        *more,
    )
    return swarm.start_program("batches", *python("-m", "node", "provide", "batch", *options))


def ended(provider: Actor) -> int:
    """End a provider, and return its exit code."""
    provider.process.terminate()
    return provider.process.wait(10)


@pytest.fixture
async def serving(swarm: Swarm, nodes: list[Node], client: Client) -> Actor:
    """A worker at the node that is asked."""
    worker = swarm.start_worker("worker", "--delay-first", "0.05")
    await client.register(nodes[1], "p", [MODEL], worker.fields["url"])
    await client.listed(nodes, MODEL)
    return worker


def lines(count: int, *more: bytes) -> bytes:
    """Return a file of so many requests with ids of their own, followed by more lines."""
    requests = [
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
    return b"\n".join((*requests, *more)) + b"\n"


async def begun(ask: openai.AsyncOpenAI, content: bytes) -> Batch:
    file = await ask.files.create(file=("lines.jsonl", content), purpose="batch")
    return await ask.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


async def over(ask: openai.AsyncOpenAI, batch: Batch, *, within: float = 30) -> Batch:
    """Wait for the end of a batch, and return it."""
    found = batch

    async def done() -> bool:
        nonlocal found
        try:
            found = await ask.batches.retrieve(batch.id)
        except openai.InternalServerError:
            return False
        return found.status in ("completed", "failed", "expired", "cancelled")

    await until(done, within=within, otherwise="the batch is not over")
    return found


async def rows(ask: openai.AsyncOpenAI, file: str | None) -> Sequence[dict[str, Any]]:
    if file is None:
        return []
    return [orjson.loads(line) for line in (await ask.files.content(file)).content.splitlines()]


def asking(node: Node) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{node.http}/v1", api_key="x", max_retries=0)


async def test_each_line_of_a_batch_is_answered_and_a_bad_line_is_an_error_of_its_own(
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
    assert ended(provider) == 0


async def test_a_provider_killed_in_the_middle_of_a_batch_loses_no_line_and_answers_none_twice(
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
        answered = Counter(row["custom_id"] for row in await rows(ask, done.output_file_id))
        assert answered == Counter(f"line {n}" for n in range(300))
        assert done.error_file_id is None
    assert ended(provider) == 0


async def test_the_command_batch_run_answers_a_file_and_continues_an_interrupted_batch(
    swarm: Swarm, nodes: list[Node], serving: Actor, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines(60, b"{broken"))
    options = ("--node", nodes[1].http, "--data-dir", str(nodes[1].folder), "--every", "0.1")
    command = python("-m", "node", "batch", "run", str(file), *options)

    async def run(*, within: float) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), within)
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    code, _, stderr = await run(within=10)
    assert (code, "modelvine provide batch" in stderr or "--type batch" in stderr) == (1, True)
    provider = provide(swarm, nodes[0])
    await client.listed(nodes, "batch")
    trace = tmp_path / "lines.jsonl.batch"
    watching = asyncio.ensure_future(run(within=30))
    await until(trace.exists, within=10, otherwise="no batch was begun")
    code, out, stderr = await watching
    assert (code, out.splitlines()[0]) == (1, "completed: 60 answered, 1 refused, of 61")
    answers = (tmp_path / "lines.jsonl.answers").read_bytes().splitlines()
    assert [orjson.loads(row)["custom_id"] for row in answers] == [f"line {n}" for n in range(60)]
    assert len((tmp_path / "lines.jsonl.errors").read_bytes().splitlines()) == 1
    assert not trace.exists()
    file.write_bytes(lines(1_000))
    code, _, stderr = await run(within=2)
    assert (code, "began batch_" in stderr) == (130, True)
    code, out, stderr = await run(within=60)
    assert (code, out.splitlines()[0]) == (0, "completed: 1,000 answered, 0 refused, of 1,000")
    assert "continuing batch_" in stderr
    assert ended(provider) == 0


async def test_llama_stacks_own_calls_reach_the_same_provider(
    swarm: Swarm, nodes: list[Node], serving: Actor, client: Client
) -> None:
    provider = provide(swarm, nodes[0])
    await client.listed(nodes, "batch")
    messages = b'[{"role":"user","text":"hi"}]\n[{"role":"user","text":"ho"}]\n'
    path = {"value": base64.b64encode(messages).decode(), "type": "raw_bytes"}
    body = {"model": MODEL, "prompt_file_path": path, "options": {"max_tokens": 4}}
    answer = await client.post(nodes[1], "/batch_inference/jobs/submit", body)
    job = orjson.loads(answer.body)
    assert job["status"] == "validating"

    async def completed() -> bool:
        nonlocal job
        job = await client.get(nodes[1], f"/batch_inference/jobs/status?job_id={job['job_id']}")
        return bool(job["status"] == "completed")

    await until(completed, within=20, otherwise="the job is not completed")
    file = job["success_file_path"]["value"].removeprefix("/v1/files/").removesuffix("/content")
    async with asking(nodes[0]) as ask:
        assert [row["custom_id"] for row in await rows(ask, file)] == ["1", "2"]
    assert ended(provider) == 0


async def test_a_batch_of_2000_lines_survives_the_loss_of_a_worker_a_node_and_its_provider(
    tmp_path: Path, client: Client
) -> None:
    with Swarm(tmp_path) as swarm:
        home, entry, other = swarm.start_all("home", "entry", "other")
        workers = [swarm.start_worker(f"worker{n}", "--delay-first", "0.03") for n in range(3)]
        for node, worker in zip((home, entry, other), workers, strict=True):
            await client.register(node, "p", [MODEL], worker.fields["url"], capacity=4)
        provider = provide(swarm, home)
        await client.listed([home, entry, other], MODEL, "batch")
        async with asking(entry) as ask:
            batch = await begun(ask, lines(2_000))

            async def answered(count: int) -> None:
                async def enough() -> bool:
                    counts = (await ask.batches.retrieve(batch.id)).request_counts
                    return counts is not None and counts.completed >= count

                await until(enough, within=60, otherwise=f"not {count} lines are answered")

            await answered(200)
            swarm.kill(workers[0])
            await answered(500)
            swarm.kill(other.actor)
            await answered(800)
            swarm.kill(provider)
            provide(swarm, home)
            done = await over(ask, batch)
            assert done.status == "completed"
            lines_answered = Counter(
                row["custom_id"] for row in await rows(ask, done.output_file_id)
            )
            assert lines_answered == Counter(f"line {n}" for n in range(2_000))
            assert done.error_file_id is None


async def test_providers_that_share_a_database_act_as_one_and_take_over_from_each_other(
    tmp_path: Path, client: Client
) -> None:
    with PostgresServer() as database, Swarm(tmp_path) as swarm:
        one, two, entry = swarm.start_all("one", "two", "entry")
        worker = swarm.start_worker("worker", "--delay-first", "0.03")
        await client.register(entry, "p", [MODEL], worker.fields["url"], capacity=8)
        shared = ("--database", database.url)
        mortal, other = (provide(swarm, node, *shared, folder=node.name) for node in (one, two))
        await client.listed([one, two, entry], MODEL, "batch")
        async with asking(entry) as ask, asking(two) as beside:
            batch = await begun(ask, lines(1_000))
            assert [found.id.partition("@")[0] for found in (await ask.batches.list()).data] == [
                batch.id.partition("@")[0]
            ]

            async def begun_well() -> bool:
                counts = (await beside.batches.retrieve(batch.id)).request_counts
                return counts is not None and counts.completed >= 100

            await until(begun_well, within=30, otherwise="no line is answered")
            swarm.kill(mortal)
            swarm.kill(one.actor)
            database.stop()
            database.start()
            done = await over(ask, batch, within=90)
            assert done.status == "completed"
            found = Counter(row["custom_id"] for row in await rows(ask, done.output_file_id))
            assert found == Counter(f"line {n}" for n in range(1_000))
        assert ended(other) == 0
