"""Is a model tuned through the mesh? LoRA by `peft` behind node 1; node 3 is asked in Llama Stack's words and OpenAI's."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.fine_tuning import FineTuningJob

from node.demo.play import Actor
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm, python
from tests.swarm.test_attach import attached
from tests.swarm.waiting import show, until
from tests.workers.llama_stack_schema import ANSWERS

pytestmark = pytest.mark.images

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv" / "images" / "bin" / "python"
BASE = "tiny-llama"
FOREVER = 1_000_000
"""More epochs than any test waits for."""
LORA = {"finetuning_type": "lora", "apply_lora_to_mlp": True, "apply_lora_to_output": True}
OPTIONS = {"n_epochs": 4, "batch_size": 4, "seed": 3, "custom_training_options": LORA}
ROWS = [
    {"dialog": [{"role": "user", "text": f"What grows on vine {n}?"}, {"role": "assistant", "text": "Grapes."}],
     "keep_loss": [False, True]}
    for n in range(8)
]  # fmt: skip
MESSAGES = [
    {"messages": [{"role": m["role"], "content": m["text"]} for m in row["dialog"]]} for row in ROWS
]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def folder(swarm: Swarm) -> Path:
    """Where the worker keeps its files; the rows lie there."""
    folder = swarm.folder / "tuner"
    folder.mkdir()
    (folder / "rows.jsonl").write_bytes(lines(ROWS))
    (folder / "broken.jsonl").write_bytes(lines(ROWS) + b"{broken\n")
    return folder


@pytest.fixture(scope="module")
def tuner(swarm: Swarm, folder: Path) -> Actor:
    """The worker, in a process of its own environment."""
    if not PYTHON.exists():
        pytest.skip("the worker is not installed; `make images` installs it")
    return swarm.start_program(
        "tuner", str(PYTHON), "-m", "tests.workers.fine_tuning.worker", str(folder)
    )


async def run(*command: str) -> str:
    """Run a program to its end; return what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@asynccontextmanager
async def registered(client: Client, nodes: list[Node], tuner: Actor, *more: str) -> AsyncIterator[None]:  # fmt: skip
    """Register the worker at the first node; enter once all nodes know it."""
    options = ("--node", nodes[0].http, "--data-dir", str(nodes[0].folder))
    row = ("tuned", "tuner", tuner.fields["url"], "--type", "fine-tuning", *more)
    await run(*python("-m", "node", "register", *row, *options))
    await client.agreed(nodes)
    yield
    await client.unregister(nodes[0], "tuned")


@pytest.fixture
async def stack(three: list[Node], client: Client, tuner: Actor) -> AsyncIterator["Stack"]:
    """The worker registered as one of Llama Stack's, asked at a node that has no worker."""
    async with registered(client, three, tuner, "--dialect", "llama_stack_http"):
        yield Stack(client, three[2])


@pytest.fixture
async def ai(three: list[Node]) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at that node."""
    async with openai.AsyncOpenAI(
        base_url=f"{three[2].http}/v1", api_key="unused", max_retries=0, timeout=60
    ) as ai:
        yield ai


class Stack:
    """Asks one node in Llama Stack's words; each answer has to be as its specification says."""

    def __init__(self, client: Client, node: Node) -> None:
        self._session = client.session
        self._node = node

    async def submit(self, data: str, **options: object) -> dict[str, Any]:
        body = {"model": BASE, "data": data, "fine_tuning_options": {**OPTIONS, **options}}
        return await self.ask("POST", "submit", json=body)

    async def ask(self, method: str, call: str, **more: Any) -> dict[str, Any]:
        path = f"/fine_tuning/jobs/{call}"
        async with self._session.request(method, f"{self._node.http}{path}", **more) as response:
            body = await response.read()
            assert response.status == 200, body
        ANSWERS[path].validate_json(body)
        return dict(json.loads(body))

    async def status(self, job: dict[str, Any]) -> dict[str, Any]:
        return await self.ask("GET", "status", params={"job_id": job["job_id"]})

    async def cancel(self, job: dict[str, Any]) -> dict[str, Any]:
        return await self.ask("POST", "cancel", json={"job_id": job["job_id"]})

    async def tail(self, job: dict[str, Any]) -> AsyncIterator[str]:
        path = "/fine_tuning/jobs/tail"
        params = {"job_id": job["job_id"]}
        async with self._session.get(f"{self._node.http}{path}", params=params) as response:
            assert (response.status, response.content_type) == (200, "application/x-ndjson")
            async for line in response.content:
                ANSWERS[path].validate_json(line)
                yield json.loads(line)["logs"][0]["message"]


def losses(log: list[str], name: str = "loss") -> list[float]:
    return [float(m[1]) for line in log if (m := re.search(rf"\b{name} (\d+\.\d+)", line))]


async def saved(client: Client, node: Node, paths: list[str], folder: Path) -> Path:
    """Download an adapter's files from any node into a folder, under their own names; return the folder."""
    files: dict[str, bytes] = {}
    for path in paths:
        async with client.session.get(f"{node.http}{path}") as response:
            assert response.status == 200, await response.text()
            files[
                "adapter" + path.partition("@")[0].partition(".adapter")[2]
            ] = await response.read()
    assert {*files} == {"adapter_config.json", "adapter_model.safetensors"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


async def learnt(rows: Path, adapter: Path) -> tuple[float, float]:
    """Have `peft` load an adapter; return the loss without it and with it."""
    module = "tests.workers.fine_tuning.adapted"
    output = await run(str(PYTHON), "-W", "ignore", "-m", module, str(rows), str(adapter))
    without, with_it = map(float, output.split())
    return without, with_it


async def test_a_model_is_tuned_and_its_adapter_is_downloaded_at_another_node_and_loaded(
    stack: Stack, three: list[Node], client: Client, folder: Path, tmp_path: Path
) -> None:
    rows = folder / "rows.jsonl"
    job = await stack.submit(rows.as_uri())
    log = [line async for line in stack.tail(job)]
    done = await stack.status(job)
    assert (done["status"], done["metadata"]["steps"]) == ("success", 8)
    assert done["input_config"]["fine_tuning_options"]["seed"] == 3
    assert len(losses(log)) == 8
    assert losses(log)[-1] < losses(log)[0] / 2
    assert len(done["checkpoints"]) == 2 * OPTIONS["n_epochs"]
    adapter = await saved(client, three[1], done["checkpoints"][-2:], tmp_path)
    without, with_it = await learnt(rows, adapter)
    assert with_it < losses(log)[-1] < without
    show("tuned", first=losses(log)[0], last=losses(log)[-1], without=without, with_it=with_it)
    async with client.session.get(f"{three[1].http}{done['logs']}") as response:
        assert (await response.text()).splitlines() == log


async def test_the_same_seed_gives_the_same_losses_and_another_seed_does_not(
    stack: Stack, folder: Path
) -> None:
    async def trained(seed: int) -> list[float]:
        job = await stack.submit((folder / "rows.jsonl").as_uri(), seed=seed)
        return losses([line async for line in stack.tail(job)])

    first = await trained(1)
    assert first == await trained(1)
    assert first != await trained(2)


async def test_a_cancelled_job_stops_between_two_steps_and_keeps_what_it_has(
    stack: Stack, three: list[Node], client: Client, folder: Path, tmp_path: Path
) -> None:
    rows = folder / "rows.jsonl"
    job = await stack.submit(rows.as_uri(), n_epochs=FOREVER)
    log: list[str] = []
    async for line in stack.tail(job):
        log.append(line)
        if len(losses(log)) == 4:
            assert (await stack.status(job))["status"] == "running"
            assert (await stack.cancel(job))["status"] == "cancelled"
    steps = len(losses(log))
    assert log[-1] == f"cancelled after step {steps} of {2 * FOREVER}"
    status = await stack.status(job)
    assert (status["status"], status["metadata"]["steps"]) == ("cancelled", steps)
    adapter = await saved(client, three[1], status["checkpoints"][:2], tmp_path)
    without, with_it = await learnt(rows, adapter)
    assert with_it < without


async def test_a_job_waits_for_its_turn_and_is_cancelled_before_its_first_step(
    stack: Stack, folder: Path
) -> None:
    rows = (folder / "rows.jsonl").as_uri()
    first, second = await stack.submit(rows, n_epochs=FOREVER), await stack.submit(rows)
    await until_state(stack, first, "running")
    assert (await stack.status(second))["status"] == "queued"
    assert (await stack.cancel(second))["status"] == "cancelled"
    assert [line async for line in stack.tail(second)] == [
        "queued",
        "cancelled before its first step",
    ]
    assert (await stack.cancel(first))["status"] == "cancelled"


async def until_state(stack: Stack, job: dict[str, Any], state: str) -> None:
    async def there() -> bool:
        return bool((await stack.status(job))["status"] == state)

    await until(there, within=10, otherwise=f"the job is not {state}")


async def test_a_job_whose_rows_cannot_be_read_fails_and_another_node_says_why(
    stack: Stack, three: list[Node], client: Client, folder: Path
) -> None:
    job = await stack.submit((folder / "broken.jsonl").as_uri())
    await until_state(stack, job, "failed")
    path = (await stack.status(job))["error_path"]
    async with client.session.get(f"{three[1].http}{path}") as response:
        assert await response.text() == "row 9 is not JSON\n"


async def test_a_workers_refusal_is_passed_on_in_its_words(stack: Stack, client: Client, three: list[Node]) -> None:  # fmt: skip
    body = {"model": "another", "data": "file:///etc/passwd"}
    answer = await client.post(three[2], "/fine_tuning/jobs/submit", body)
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (
        400,
        f"only {BASE} is fine-tuned here",
    )
    job = await stack.submit("file:///etc/passwd")
    await until_state(stack, job, "failed")


async def over(ai: openai.AsyncOpenAI, job: FineTuningJob) -> FineTuningJob:
    """Wait for the end of a job, and return it."""
    found = job

    async def done() -> bool:
        nonlocal found
        found = await ai.fine_tuning.jobs.retrieve(job.id)
        return found.status in ("succeeded", "failed", "cancelled")

    await until(done, within=20, otherwise="the job is not over")
    return found


async def begun(ai: openai.AsyncOpenAI, epochs: int) -> FineTuningJob:
    file = await ai.files.create(file=("rows.jsonl", lines(MESSAGES)), purpose="fine-tune")
    validation = await ai.files.create(
        file=("held.jsonl", lines(MESSAGES[:2])), purpose="fine-tune"
    )
    hyper: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs}}}
    return await ai.fine_tuning.jobs.create(
        model=BASE, training_file=file.id, validation_file=validation.id, method=hyper, seed=3
    )


async def test_openais_client_tunes_reads_events_and_checkpoints_and_loads_its_results(
    three: list[Node], client: Client, tuner: Actor, ai: openai.AsyncOpenAI, folder: Path, tmp_path: Path
) -> None:  # fmt: skip
    async with attached(three[0], tmp_path, tuner.fields["url"], "--project", "found") as attach:
        await attach.says("monitoring it")
        assert "fine-tuning" in attach.said
        await client.agreed(three)
        done = await over(ai, await begun(ai, 4))
        assert done.status == "succeeded"
        assert done.id in [job.id async for job in ai.fine_tuning.jobs.list(limit=1)]
        events = [e async for e in ai.fine_tuning.jobs.list_events(done.id, limit=3)]
        reported = losses([event.message for event in reversed(events)])
        assert len(reported) == 8
        assert reported[-1] < reported[0]
        checkpoints = [c async for c in ai.fine_tuning.jobs.checkpoints.list(done.id, limit=3)]
        assert [checkpoint.step_number for checkpoint in checkpoints] == [8, 6, 4, 2]
        assert checkpoints[0].metrics.full_valid_loss < checkpoints[-1].metrics.full_valid_loss
        assert {checkpoint.fine_tuning_job_id for checkpoint in checkpoints} == {done.id}
        paths = [f"/v1/files/{file}/content" for file in done.result_files]
        adapter = await saved(client, three[1], paths, tmp_path)
        without, with_it = await learnt(folder / "rows.jsonl", adapter)
        assert with_it < without
        again = await begun(ai, FOREVER)
        assert (await ai.fine_tuning.jobs.cancel(again.id)).status == "cancelled"
        assert await attach.end() == 0


async def test_llama_stacks_calls_are_translated_for_the_same_worker(
    three: list[Node], client: Client, tuner: Actor, ai: openai.AsyncOpenAI
) -> None:
    async with registered(client, three, tuner):
        stack = Stack(client, three[1])
        file = await ai.files.create(file=("rows.jsonl", lines(ROWS)), purpose="fine-tune")
        for data in (file.id, f"{three[2].http}/v1/files/{file.id}/content"):
            body = {"model": BASE, "data": data, "fine_tuning_options": {"n_epochs": 2}}
            job = await stack.ask("POST", "submit", json=body)
            await until_state(stack, job, "success")
            log = [line async for line in stack.tail(job)]
            assert losses(log)[-1] < losses(log)[0]
            assert len((await stack.status(job))["checkpoints"]) == 2
