"""Services of published programs behind a node: `attach` finds them, OpenAI's client asks another node."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.real.conftest import READER, TALKER, Behind, World, who
from tests.swarm.client import Client
from tests.swarm.test_attach import attached
from tests.swarm.waiting import until
from tests.workers.llama_stack_schema import ANSWERS

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TEXTS = {
    "vine.txt": "A vine on a wall bears grapes in autumn.",
    "car.txt": "A car on a road burns petrol.",
    "house.txt": "The house has a red door.",
}
LINES = [
    {
        "custom_id": f"line {number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": f"upstream/{TALKER}",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": f"Hello {number}"}],
        },
    }
    for number in range(3)
]


@pytest.fixture
async def ai(
    behind: Behind, world: World, client: Client, tmp_path: Path
) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at the node without workers, while the program is attached to the other one."""
    url = behind.running.place.url
    async with attached(world.serving, tmp_path, url, "--project", "found") as attach:
        await attach.says("monitoring it")
        # The program's first description of itself may take longer than one check.
        await until(
            lambda: attach.said.count("registered found/services") == 2,
            within=15,
            otherwise=f"it says: {attach.said}",
        )
        await client.agreed([world.serving, world.asked])
        async with openai.AsyncOpenAI(
            base_url=f"{world.asked.http}/v1", api_key="unused", max_retries=0, timeout=60
        ) as ai:
            yield ai
        assert await attach.end() == 0


async def uploaded(ai: openai.AsyncOpenAI) -> dict[str, str]:
    """Upload the texts; return their ids by name."""
    files = [
        await ai.files.create(file=(name, text.encode()), purpose="assistants")
        for name, text in TEXTS.items()
    ]
    return {file.filename: file.id for file in files}


@who("services")
async def test_files_are_kept_listed_once_and_forgotten(ai: openai.AsyncOpenAI) -> None:
    ids = await uploaded(ai)
    # The next page would leave out files made in the same second as the last one listed.
    listed = [file.id async for file in ai.files.list(limit=100)]
    assert len(listed) == len({*listed})
    assert {*ids.values()} <= {*listed}
    for name, id_ in ids.items():
        assert (await ai.files.retrieve(id_)).filename == name
        assert (await ai.files.content(id_)).text == TEXTS[name]
        assert (await ai.files.delete(id_)).deleted
    with pytest.raises(openai.NotFoundError):
        await ai.files.retrieve(ids["vine.txt"])


@who("services")
async def test_a_vector_store_takes_files_and_finds_them_by_their_meaning(
    ai: openai.AsyncOpenAI,
) -> None:
    ids = await uploaded(ai)
    model = {"embedding_model": f"upstream/{READER}"}
    store = await ai.vector_stores.create(name="notes", extra_body=model)
    vine = await ai.vector_stores.files.create_and_poll(ids["vine.txt"], vector_store_id=store.id)
    assert (vine.id, vine.status) == (ids["vine.txt"], "completed")
    rest = [ids["car.txt"], ids["house.txt"]]
    batch = await ai.vector_stores.file_batches.create_and_poll(store.id, file_ids=rest)
    assert batch.file_counts.completed == 2
    inside = {file.id async for file in ai.vector_stores.files.list(store.id)}
    assert inside == {*ids.values()}
    for name, text in TEXTS.items():
        found = await ai.vector_stores.search(store.id, query=text, max_num_results=1)
        assert [(one.filename, one.file_id) for one in found.data] == [(name, ids[name])]
        assert found.data[0].content[0].text == text
    deletion = await ai.vector_stores.files.delete(ids["vine.txt"], vector_store_id=store.id)
    assert deletion.deleted
    assert {file.id async for file in ai.vector_stores.files.list(store.id)} == {*rest}
    assert store.id in [one.id async for one in ai.vector_stores.list()]
    assert (await ai.vector_stores.delete(store.id)).deleted
    with pytest.raises(openai.BadRequestError, match="not found"):
        await ai.vector_stores.retrieve(store.id)


@who("services")
async def test_a_batch_is_answered_by_a_model_of_the_mesh(ai: openai.AsyncOpenAI) -> None:
    content = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    file = await ai.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = await ai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    async with asyncio.timeout(120):
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.2)
            batch = await ai.batches.retrieve(batch.id)
    assert (batch.status, batch.input_file_id) == ("completed", file.id)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == len(LINES)
    assert batch.output_file_id is not None
    rows = (await ai.files.content(batch.output_file_id)).text.splitlines()
    assert {json.loads(row)["custom_id"] for row in rows} == {
        str(one["custom_id"]) for one in LINES
    }
    assert {json.loads(row)["response"]["status_code"] for row in rows} == {200}
    assert batch.id in [one.id async for one in ai.batches.list(limit=1)]


@who("services")
async def test_a_request_for_what_the_program_does_not_have_gets_its_own_answer(
    ai: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError):
        await ai.uploads.create(
            bytes=10, filename="a.txt", mime_type="text/plain", purpose="assistants"
        )


async def scored(client: Client, behind: Behind, world: World, response: str) -> float:
    """Have a reward model score a response, in Llama Stack's words."""
    pair = [{"role": "user", "text": "What grows?"}, {"role": "assistant", "text": response}]
    function = {"name": "score"}
    body = {
        "reward": behind.scores,
        "prompt_with_response": pair,
        "scoring_function": function,
    }
    answer = await client.post(world.asked, "/reward_scoring", body)
    assert answer.status == 200, answer.body
    ANSWERS["/reward_scoring"].validate_json(answer.body)
    return float(json.loads(answer.body)["score"])


async def own_score(client: Client, url: str) -> float:
    """Ask the program itself: vLLM scores a pair, infinity classifies a text."""
    pair = {"model": "ranker", "text_1": "What grows?", "text_2": "A vine."}
    async with client.session.post(f"{url}/v1/score", json=pair) as response:
        if response.status == 200:
            return float((await response.json())["data"][0]["score"])
    body = {"model": "classifier", "input": ["What grows?\nA vine."]}
    async with client.session.post(f"{url}/classify", json=body) as response:
        [classes] = (await response.json())["data"]
    return float(next(entry["score"] for entry in classes if entry["label"] == "LABEL_2"))


@who("reward")
async def test_a_response_is_scored_as_the_program_itself_scores_it(
    behind: Behind, world: World, client: Client
) -> None:
    vine = await scored(client, behind, world, "A vine.")
    assert vine == pytest.approx(await own_score(client, behind.running.place.url))
    assert vine != pytest.approx(await scored(client, behind, world, "A car."))
