"""Does every face reach a real model through every dialect? Face → mesh → dialect → bridge → llama.cpp, all 25 pairs.

One llama.cpp; before it a bridge for each protocol but its own; each registered at one node under a name of its own; asked at the
other node, by each face, in one piece and as a stream where the protocol has one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from node.demo.play import Actor
from router.rpc.call import Channels
from router.rpc.messages import LOCALAI, REMOTELLM, message_class, methods_of
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm, python
from tests.swarm.waiting import show

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

BRIDGED = {
    "tgi": "tgi+http://{}",
    "llamastack": "llamastack+http://{}",
    "localai": "grpc+localai://{}",
    "remotellm": "grpc+remotellm://{}",
}
DIALECTS = ("openai", *BRIDGED)
# A sentence is enough, and over the protocol without a maximum length the model would go on and on.
# No line break: an answer that is sampled may begin with one.
STOP = ["."]
DRAWS = 5
PROMPT = "My name is"
MESSAGES = [{"role": "user", "content": "Say hello to me in one short sentence."}]


@dataclass(frozen=True, slots=True)
class World:
    """Where clients ask: HTTP and both faces over gRPC of the node that has no worker."""

    http: Client
    asked: Node
    rpc: Channels

    async def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Ask for JSON."""
        async with self.http.session.post(f"{self.asked.http}{path}", json=body) as response:
            content = await response.read()
            assert response.status == 200, content
            return orjson.loads(content)

    async def events(self, path: str, body: Mapping[str, object]) -> list[bytes]:
        """Ask for an event stream, and return its data."""
        async with self.http.session.post(f"{self.asked.http}{path}", json=body) as response:
            content = await response.read()
        assert response.content_type == "text/event-stream", content
        return [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]

    async def call(self, service: str, name: str, model: str, **fields: object) -> Any:
        """Ask over gRPC."""
        method, face = methods_of(service)[name], {LOCALAI: "localai", REMOTELLM: "remotellm"}
        api = f"grpc://{self.asked.actor.fields[face[service]]}"
        return await self.rpc.ask(api, method, method.request_class(**fields), {"x-model": model})


async def openai(world: World, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "max_tokens": 40, "stop": STOP, "temperature": 0}
    answer = await world.post("/v1/chat/completions", body)
    *events, done = await world.events("/v1/chat/completions", body | {"stream": True})
    assert done == b"[DONE]"
    assert any(orjson.loads(event)["choices"][0]["delta"].get("content") for event in events)
    return str(answer["choices"][0]["message"]["content"])


async def tgi(world: World, model: str) -> str:
    path = f"/tgi/pairs/{model}"
    chat = {"messages": MESSAGES, "max_tokens": 40, "stop": STOP, "temperature": 0}
    answer = await world.post(f"{path}/v1/chat/completions", chat)
    if model != "via-llamastack":  # which only chats
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "stop": STOP}}
        assert (await world.post(f"{path}/generate", body))["generated_text"].strip()
        last = orjson.loads((await world.events(f"{path}/generate_stream", body))[-1])
        assert last["generated_text"].strip()
    return str(answer["choices"][0]["message"]["content"])


async def llamastack(world: World, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "options": {"max_tokens": 40}}
    events = await world.events("/inference", body | {"stream": True})
    assert any(orjson.loads(event).get("text") for event in events)
    [candidate] = (await world.post("/inference", body))["candidates"]
    return str(candidate["text"])


async def localai(world: World, model: str) -> str:
    message = message_class("backend.Message")
    messages = [message(role=m["role"], content=m["content"]) for m in MESSAGES]
    fields = {"Messages": messages, "UseTokenizerTemplate": True, "Tokens": 40, "StopPrompts": STOP}
    return bytes((await world.call(LOCALAI, "Predict", model, **fields)).message).decode()


async def remotellm(world: World, model: str) -> str:
    # Behind a protocol whose requests always name a temperature the answer is sampled, and may begin with the stop text.
    for _ in range(DRAWS):
        reply = await world.call(REMOTELLM, "Generate", model, prompts=[PROMPT], stop=STOP)
        if text := str(reply.generations[0].generations[0].text).strip():
            return text
    return ""


FACES: Mapping[str, Callable[[World, str], Awaitable[str]]] = {
    "openai": openai,
    "tgi": tgi,
    "llamastack": llamastack,
    "localai": localai,
    "remotellm": remotellm,
}


@pytest.fixture(scope="module")
def llama(swarm: Swarm) -> Actor:
    # RemoteLLM has no field for the temperature.
    return swarm.start_worker("llama", "--temperature", "0", module="node.demo.worker")


@pytest.fixture(scope="module")
def bridges(swarm: Swarm, llama: Actor) -> Mapping[str, Actor]:
    url = llama.ready.split()[1]
    command = ("-m", "node", "bridge", "--upstream", url, "--dialect")
    return {
        name: swarm.start_program(f"bridge-{name}", *python(*command, name)) for name in BRIDGED
    }


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    faces = {"faces": {"localai": "127.0.0.1:0", "remotellm": "127.0.0.1:0"}}
    return swarm.start_all("serving", Start("asked", faces))


@pytest.fixture
async def world(
    nodes: list[Node], llama: Actor, bridges: Mapping[str, Actor]
) -> AsyncIterator[World]:
    serving, asked = nodes
    model = llama.fields["model"]
    rows = [{"model": "via-openai", "api": llama.ready.split()[1], "worker_model": model}]
    for name, api in BRIDGED.items():
        url = bridges[name].fields[name]
        rows.append({"model": f"via-{name}", "api": api.format(url), "worker_model": model})
    rpc = Channels(RouterSettings(), SsrfGuard())
    async with connected() as client:
        body = {"project": "pairs", "models": rows}
        answer = await client.post(serving, "/api/v0/ai/project/register", body)
        assert answer.status == 200, answer.body
        await client.listed(nodes, *(row["model"] for row in rows))
        yield World(client, asked, rpc)
    await rpc.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("face", FACES)
async def test_a_face_reaches_a_real_model_through_a_dialect(
    world: World, face: str, dialect: str
) -> None:
    text = await FACES[face](world, f"via-{dialect}")
    show(f"{face} → mesh → {dialect}", text=repr(text.strip())[:60])
    assert text.strip()


async def test_consecutive_streams_succeed_though_llama_cpp_hangs_up_after_each(
    world: World,
) -> None:
    body = {"model": "via-openai", "messages": MESSAGES, "max_tokens": 1, "stream": True}
    for _ in range(50):
        *_, done = await world.events("/v1/chat/completions", body)
        assert done == b"[DONE]"


@pytest.mark.parametrize("dialect", ["openai", "tgi"])
async def test_a_client_of_tgi_sees_the_tokens_of_llama_cpp(world: World, dialect: str) -> None:
    path = f"/tgi/pairs/via-{dialect}"
    body = {
        "inputs": PROMPT,
        "parameters": {"max_new_tokens": 12, "details": True, "top_n_tokens": 2},
    }
    answer = await world.post(f"{path}/generate", body)
    tokens = answer["details"]["tokens"]
    *pieces, last = map(orjson.loads, await world.events(f"{path}/generate_stream", body))
    show(f"tgi → mesh → {dialect}", tokens=repr([(t["id"], t["text"]) for t in tokens])[:60])
    assert len(tokens) == answer["details"]["generated_tokens"] == 12
    assert "".join(token["text"] for token in tokens) == answer["generated_text"]
    assert len({token["id"] for token in tokens}) > 4
    assert all(token["logprob"] <= 0 for token in tokens)
    # The likeliest token is the one that was chosen: TGI is greedy by default.
    assert [top[0]["id"] for top in answer["details"]["top_tokens"]] == [t["id"] for t in tokens]
    assert last["generated_text"] == answer["generated_text"]
    assert [piece["token"]["id"] for piece in pieces] == [token["id"] for token in tokens]


async def test_a_client_of_llama_stack_sees_how_likely_the_tokens_of_llama_cpp_were(
    world: World,
) -> None:
    body = {"model": "via-openai", "messages": MESSAGES}
    body |= {"options": {"max_tokens": 12, "temperature": 0, "logprobs": True}}
    [candidate] = (await world.post("/inference", body))["candidates"]
    pieces = list(map(orjson.loads, await world.events("/inference", body | {"stream": True})))
    assert len(candidate["log_probs"]) == len(candidate["tokens"]) > 4
    assert all(number <= 0 for number in candidate["log_probs"])
    streamed = [n for piece in pieces for n in piece.get("tokens", ())]
    # A stream has no piece for the token that ends it.
    assert candidate["tokens"] in (streamed, [*streamed, candidate["tokens"][-1]])
