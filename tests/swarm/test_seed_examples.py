"""Do the requests of the model interface's own documentation work as printed there? Only the port is another.

They are sent with the real `curl` where there is one, else as the same bytes over `http.client`.
"""

import asyncio
import http.client
import json
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

PRINTED = "http://127.0.0.1:1088"
"""The address that the printed examples ask."""

CHAT = r"""curl http://127.0.0.1:1088/v1/chat/completions \
  -H "Content-Type: application/json" \
  -d '{
    "model": "Llama3-8B",
    "messages": [
      {
        "role": "system",
        "content": "You are a helpful assistant."
      },
      {
        "role": "user",
        "content": "Hello!"
      }
    ],
    "stream": false
  }'"""

GENERATION = r"""curl http://127.0.0.1:1088/v1/images/generations \
  -H "Content-Type: application/json" \
  -d '{
    "model": "SuperImage",
    "prompt": "A cute baby sea otter",
    "n": 1,
    "size": "1024x1024",
    "width": 1024,
    "height": 1024
  }'"""

EDIT = r"""curl http://127.0.0.1:1088/v1/images/edits \
  -H "Content-Type: application/json" \
  -d '{
    "model": "SuperImage",
    "image": "https://...",
    "prompt": "A cute baby sea otter wearing a beret",
    "n": 1,
    "size": "1024x1024",
    "width": 1024,
    "height": 1024
  }'"""

MODELS = "curl http://127.0.0.1:1088/v1/models"

PROJECTS = {"DecentralGPT": ("Llama3-8B", 0), "SuperImage": ("SuperImage", 1)}


async def _run(printed: str, node: Node) -> Any:
    """Do what the example says, at a node, and return the JSON that it prints."""
    command = shlex.split(printed.replace("\\\n", " ").replace(PRINTED, node.http))
    send = _with_curl if shutil.which("curl") else _with_http_client
    return json.loads(await asyncio.to_thread(send, command))


def _with_curl(command: list[str]) -> bytes:
    command = [command[0], "--silent", "--show-error", "--max-time", "20", *command[1:]]
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout


def _with_http_client(command: list[str]) -> bytes:
    url, options = urlsplit(command[1]), command[2:]
    option_values = dict(zip(options[::2], options[1::2], strict=True))
    name, _, value = option_values.get("-H", "Accept: */*").partition(": ")
    connection = http.client.HTTPConnection(url.netloc, timeout=20)
    try:
        method = "POST" if "-d" in option_values else "GET"
        connection.request(method, url.path, option_values.get("-d"), {name: value})
        return connection.getresponse().read()
    finally:
        connection.close()


async def _register(client: Client, node: Node, worker: OpenAIWorker) -> None:
    """Register as the documentation says: a project, its models, the URL of each one's endpoint, and its type."""
    for project, (model, kind) in PROJECTS.items():
        path = "images/generations" if kind else "chat/completions"
        row = {"model": model, "api": f"{worker.url}/v1/{path}", "type": kind}
        answer = await client.post(
            node, "/api/v0/ai/project/register", {"project": project, "models": [row]}
        )
        assert answer.status == 200
        assert orjson.loads(answer.body) == {"code": 0, "message": "ok"}


@pytest.fixture
async def worker(three: list[Node], client: Client) -> AsyncIterator[OpenAIWorker]:
    """A worker that wraps its answers in `code` and `message`, registered at node 1."""
    async with running() as worker:
        worker.fail(code=0)
        await _register(client, three[0], worker)
        await client.listed(three, "Llama3-8B", "SuperImage")
        await client.agreed(three)
        yield worker
        for project in PROJECTS:
            await client.unregister(three[0], project)


@pytest.fixture(params=["serving", "asked"])
def node(request: pytest.FixtureRequest, three: list[Node], worker: OpenAIWorker) -> Node:
    """The node with the worker, and one that has none."""
    return three[0] if request.param == "serving" else three[1]


async def test_the_printed_chat(node: Node, worker: OpenAIWorker) -> None:
    answer = await _run(CHAT, node)
    assert (answer["code"], answer["message"]) == (0, "said")
    assert answer["model"] == "Llama3-8B"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert json.loads(worker.received[-1].body)["messages"][1]["content"] == "Hello!"


async def test_the_printed_chat_with_stream_set(node: Node) -> None:
    command = shlex.split(CHAT.replace("\\\n", " ").replace(PRINTED, node.http))
    command[-1] = command[-1].replace("false", "true")
    send = _with_curl if shutil.which("curl") else _with_http_client
    output = (await asyncio.to_thread(send, command)).decode()
    events = [line[6:] for line in output.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert {json.loads(event).get("model", "Llama3-8B") for event in events[:-1]} == {"Llama3-8B"}


async def test_the_printed_image_generation(node: Node, worker: OpenAIWorker) -> None:
    answer = await _run(GENERATION, node)
    assert (answer["code"], answer["message"]) == (0, "said")
    assert answer["data"][0]["b64_json"]
    assert worker.received[-1].path == "/v1/images/generations"


async def test_the_printed_image_edit(node: Node, worker: OpenAIWorker) -> None:
    answer = await _run(EDIT, node)
    assert answer["code"] == 0
    assert worker.received[-1].path == "/v1/images/edits"
    assert json.loads(worker.received[-1].body)["image"] == "https://..."


async def test_the_printed_list_of_models(node: Node) -> None:
    answer = await _run(MODELS, node)
    rows = {row["model"]: row for row in answer["data"]}
    for project, (model, kind) in PROJECTS.items():
        assert (rows[model]["id"], rows[model]["object"]) == (model, "model")
        assert (rows[model]["project"], rows[model]["type"]) == (project, kind)


async def test_a_workers_answer_with_an_error_code_becomes_an_error(
    node: Node, worker: OpenAIWorker
) -> None:
    worker.fail(code=1007)
    answer = await _run(CHAT, node)
    assert answer["code"] == 1007
    assert answer["error"]["type"] == "server_error"


async def test_an_unregistered_project_is_gone_everywhere_and_unregistering_twice_is_no_error(
    three: list[Node], client: Client, worker: OpenAIWorker
) -> None:
    path, body = "/api/v0/ai/project/unregister", {"project": "DecentralGPT"}
    first = await client.post(three[0], path, body)
    assert (first.status, orjson.loads(first.body)) == (200, {"code": 0, "message": "ok"})
    second = await client.post(three[0], path, body)
    assert (second.status, orjson.loads(second.body)) == (
        200,
        {"code": 0, "message": "not existed"},
    )

    async def gone() -> bool:
        return not [n for n in three if "Llama3-8B" in await client.models(n)]

    await until(gone, within=3, otherwise="it is still listed")
    answer = await _run(CHAT, three[2])
    assert (answer["code"], answer["error"]["code"]) == (1017, "model_not_found")
