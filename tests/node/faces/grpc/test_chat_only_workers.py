"""Completions for clients of every protocol by a worker that only chats, as in the interface standard."""

import orjson
import pytest

from router.rpc.messages import LOCALAI, REMOTELLM
from tests.node.faces.assembly import told
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
ASKED = {"model": "tiny", "prompt": "Once", "max_tokens": 7, "temperature": 0.5, "stop": ["END"]}
TURN = [{"role": "user", "content": "Once"}]


@pytest.fixture(params=["", "/v1", "/v1/chat/completions", "/custom/chat"])
async def place(request, worker):
    """Return the URL at which the worker is registered; of the last one only its own path exists."""
    worker.fail(lacks=("/v1/completions",), finish="stop")
    worker.url += request.param
    return worker.url


@pytest.fixture(params=["serving", "asked"])
async def node(request, mesh, worker, place):
    node = await mesh.offers(request.param, worker)
    yield node
    # It was asked for a completion once at most, and nothing is left in flight.
    assert [r.path for r in worker.received].count("/v1/completions") <= 1
    assert mesh.one.context.router.busy_loads() == {}


def bodies(worker):
    return [orjson.loads(r.body) for r in worker.received if "chat" in r.path]


async def test_a_completion_is_sent_as_a_chat(node, worker):
    for _ in range(3):
        status, payload = await told(node.http.post("/v1/completions", json=ASKED))
        assert (status, payload["object"], payload["choices"][0]["text"]) == (
            200,
            "text_completion",
            SAID,
        )
        assert (payload["code"], payload["message"]) == (0, "success")
        assert payload["usage"]["completion_tokens"] == 6
    fields = {"max_tokens": 7, "temperature": 0.5, "stop": ["END"], "stream": False}
    assert bodies(worker) == [{"model": "tiny", "messages": TURN, **fields}] * 3


async def test_a_streamed_completion_is_sent_as_a_streamed_chat(node):
    async with node.http.post("/v1/completions", json=ASKED | {"stream": True}) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        text = await response.text()
    *chunks, done = [e.removeprefix("data: ") for e in text.split("\n\n") if e and e[0] != ":"]
    assert done == "[DONE]"
    choices = [c for chunk in chunks for c in orjson.loads(chunk)["choices"]]
    assert "".join(choice["text"] for choice in choices) == STREAMED
    assert choices[-1]["finish_reason"] == "stop"


async def test_several_prompts_are_several_chats(node, worker):
    fields = ASKED | {"prompt": ["a", "b"], "n": 2, "seed": 5, "echo": True, "user": "u"}
    _, payload = await told(node.http.post("/v1/completions", json=fields))
    assert [c["text"] for c in payload["choices"]] == [p + SAID for p in "aabb"]
    assert [(b["messages"][0]["content"], b["seed"]) for b in bodies(worker)] == [
        ("a", 5), ("a", 6), ("b", 7), ("b", 8),
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"suffix": "end"}, {"stream": True, "n": 2}])
async def test_a_completion_that_no_chat_can_express_is_refused(node, wrong):
    status, payload = await told(node.http.post("/v1/completions", json=ASKED | wrong))
    assert (status, payload["error"]["code"]) == (400, "unsupported_parameter")


async def test_an_error_code_under_a_status_of_success_is_a_failure(node, worker):
    worker.fail(lacks=("/v1/completions",), code=1002)
    status, _ = await told(node.http.post("/v1/completions", json=ASKED))
    assert status == 502


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_tgis_clients_are_answered(node, path):
    async with node.http.post(f"/tgi/p/tiny{path}", json={"inputs": "Once"}) as response:
        assert response.status == 200
        assert (STREAMED if "stream" in path else SAID) in await response.text()


async def test_localais_clients_are_answered(node, opened):
    client = await opened("localai", LOCALAI, node.context, default_model="tiny")
    assert (await client.ask("Predict", Prompt="Once")).message == SAID.encode()
    pieces = [reply.message async for reply in client.stream("PredictStream", Prompt="Once")]
    assert b"".join(pieces) == STREAMED.encode()


async def test_remotellms_clients_are_answered(node, opened):
    client = await opened("remotellm", REMOTELLM, node.context, default_model="tiny")
    reply = await client.ask("Generate", prompts=["a"])
    assert [[g.text for g in texts.generations] for texts in reply.generations] == [[SAID]]


async def test_a_worker_that_completes_gets_the_request_unchanged(alone, worker):
    await alone.register(worker)
    fields = ASKED | {"own": 1}
    await told(alone.http.post("/v1/completions", json=fields))
    assert [(r.path, orjson.loads(r.body)) for r in worker.received] == [
        ("/v1/completions", fields)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_without_chats_and_completions_keeps_its_circuit_closed(
    alone, worker, stream
):
    worker.fail(lacks=("/v1/completions", "/v1/chat/completions"))
    await alone.register(worker)
    for _ in range(6):
        call = alone.http.post("/v1/completions", json=ASKED | {"stream": stream})
        status, payload = await told(call)
        assert (status, payload["error"]["code"]) == (400, "unsupported_parameter")
    # Its circuit is closed: it still gets requests of the kinds that it serves.
    vector = {"model": "tiny", "input": "a"}
    assert (await told(alone.http.post("/v1/embeddings", json=vector)))[0] == 200
