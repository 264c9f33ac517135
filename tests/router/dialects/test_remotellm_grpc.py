"""What only the RemoteLLM dialect does: batches of prompts, keys in messages, undivided texts, a model's inner state."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import orjson
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router import dialects
from router.canonical.text import read
from router.dialects.remotellm_grpc import mapping
from router.errors import (
    BadRequest,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerUnable,
    WorkerUnreachable,
)
from router.requests import Kind, Request
from router.rpc.messages import REMOTELLM, methods_of
from tests.router.world import chat, links, own, until, whole
from tests.workers import remotellm_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]


@pytest.fixture
async def worker():
    async with remotellm_worker.running() as running:
        yield running


@pytest.fixture
async def dialect():
    async with links() as own_links:
        yield dialects.load("remotellm_grpc")(own_links)


def candidate(worker, **fields):
    made = own(worker.url, dialect="remotellm_grpc")
    return replace(made, worker=replace(made.worker, **fields))


async def ask(
    dialect, worker, kind=Kind.COMPLETION, *, stream=False, headers=(), template="", **fields
):
    body = orjson.dumps({"model": "llama", "stream": stream, **fields})
    request = chat(kind=kind, stream=stream, body=body)
    replica = candidate(worker, headers=headers, template=template)
    async with dialect.answer(request, replica) as answer:
        return answer, await whole(answer)


async def test_alternatives_are_the_choices_of_every_prompt(dialect, worker):
    _, body = await ask(dialect, worker, prompt=["a", "b"], n=2)
    assert [list(request.asked.prompts) for request in worker.received] == [["a", "b"]]
    answer = orjson.loads(body)
    assert [choice["text"] for choice in answer["choices"]] == [SAID, "or else"] * 2
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}


@pytest.mark.parametrize(
    ("alternatives", "n", "asked"),
    [
        (1, 1, [1]), (3, 1, [1]), (2, 2, [1]), (3, 3, [1]), (1, 3, [1, 2]), (2, 5, [1, 2]), (3, 4, [1, 1]),
    ],
)  # fmt: skip
async def test_a_prompt_is_sent_again_for_the_choices_that_its_alternatives_lack(
    dialect, worker, alternatives, n, asked
):
    worker.fail(alternatives=alternatives)
    for _ in range(2):
        worker.received.clear()
        _, body = await ask(dialect, worker, prompt="a", n=n)
        assert len(orjson.loads(body)["choices"]) == n
        assert [len(request.asked.prompts) for request in worker.received] == asked
        # By now the number of alternatives is known.
        asked = [sum(asked)]


async def test_a_chat_becomes_one_text_that_ends_before_the_next_turn(dialect, worker):
    worker.words = ("Hello", " there", "\nUser:", " more")
    _, body = await ask(dialect, worker, Kind.CHAT, messages=HELLO)
    assert list(worker.received[0].asked.prompts) == ["be kind\n\nUser: hi\n\nAssistant:"]
    assert orjson.loads(body)["choices"][0]["message"]["content"] == "Hello there"


async def test_the_operators_template_is_used(dialect, worker):
    await ask(dialect, worker, Kind.CHAT, messages=HELLO, template="chatml")
    assert worker.received[0].asked.prompts[0].startswith("<|im_start|>system\nbe kind")


async def test_stop_strings_are_sent_and_applied_by_the_router_too(dialect, worker):
    _, body = await ask(dialect, worker, prompt="a", stop=[" how", "x"])
    assert list(worker.received[0].asked.stop) == [" how", "x"]
    choice = orjson.loads(body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there,", "stop")


async def test_a_stream_is_one_event_with_the_whole_text_and_its_end(dialect, worker):
    answer, body = await ask(dialect, worker, prompt="a", stream=True)
    assert answer.streamed
    assert answer.hides_usage
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(SAID.encode()) == 1


async def test_sampling_parameters_are_dropped_and_named(dialect, worker):
    answer, _ = await ask(
        dialect, worker, prompt="a", temperature=0.5, max_tokens=9, logit_bias={"5": 1}
    )
    assert answer.headers["x-modelvine-dropped-params"] == "max_tokens, temperature, logit_bias"


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (Kind.CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        (Kind.CHAT, {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (Kind.CHAT, {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages"),
        (Kind.COMPLETION, {"prompt": "a", "suffix": "z"}, "suffix"),
        (Kind.EMBEDDING, {"input": "a"}, "model"),
    ],
)  # fmt: skip
async def test_a_field_that_would_change_the_answer_is_refused(
    dialect, worker, kind, fields, param
):
    with pytest.raises(WorkerUnable) as unable:
        await ask(dialect, worker, kind, **fields)
    assert unable.value.param == param
    assert worker.received == []


async def test_the_key_is_sent_in_the_message_and_other_headers_as_metadata(dialect, worker):
    worker.key = "k1"
    headers = (("x-api-key", "k1"), ("x-team", "blue"))
    await ask(dialect, worker, prompt="a", headers=headers)
    received = worker.received[0]
    assert (received.asked.api_key, received.headers["x-team"]) == ("k1", "blue")
    assert "x-api-key" not in received.headers
    assert await dialect.alive(candidate(worker, headers=headers).worker)
    assert worker.probed[0].asked.api_key == "k1"


@pytest.mark.parametrize("kind", [Kind.COMPLETION, Kind.CHAT])
async def test_a_wrong_key_is_a_failure_of_a_worker_that_is_alive(dialect, worker, kind):
    worker.key = "k1"
    with pytest.raises(WorkerFailed, match="another key"):
        await ask(dialect, worker, kind, prompt="a", messages=HELLO)
    assert await dialect.alive(candidate(worker).worker)


async def test_fewer_texts_than_prompts_are_a_failure(dialect, worker):
    worker.fail(missing=1)
    with pytest.raises(WorkerFailed):
        await ask(dialect, worker, prompt=["a", "b"])


@pytest.mark.parametrize(
    ("info", "usage", "reason"),
    [
        (b'{"finish_reason":"length","usage":{"prompt_tokens":2,"completion_tokens":3}}', 5, "length"),
        (b'{"prompt_tokens":2,"completion_tokens":4}', 6, "stop"),
        (b"not JSON", None, "stop"),
        (b"[1]", None, "stop"),
        (b"", None, "stop"),
    ],
)  # fmt: skip
async def test_the_info_of_a_text_may_hold_its_usage_and_finish_reason(
    dialect, worker, info, usage, reason
):
    worker.fail(info=info)
    answer = orjson.loads((await ask(dialect, worker, prompt="a"))[1])
    assert answer["choices"][0]["finish_reason"] == reason
    if usage is None:
        assert answer["usage"]["estimated"] is True
    else:
        assert answer["usage"]["total_tokens"] == usage


async def test_tokens_are_those_of_the_models_inner_state(dialect, worker):
    _, body = await ask(dialect, worker, Kind.TOKENIZE, content="once upon a")
    assert orjson.loads(body) == {"tokens": [0, 1, 2]}


async def test_the_inner_state_is_returned_unchanged(dialect, worker):
    fields = {"prompt": "once upon", "embedding_truncation": 3, "top_k": 2, "fft_embeddings": False}
    _, body = await ask(dialect, worker, Kind.GUTS, **fields)
    state = orjson.loads(body)
    assert [token["token"] for token in state["tokens"]] == ["'once'", "'upon'"]
    assert state["tokens"][1]["hidden_state"] == [0.5, 0.5, 0.5]
    assert state["next"] == [
        {"token": "'x'", "id": token_id, "logit": 0.25} for token_id in range(2)
    ]
    request = worker.received[0].asked
    assert (request.fft_embeddings, request.embedding_trunkation, request.top_k_logits) == (
        False,
        3,
        2,
    )


@pytest.mark.parametrize(("kind", "fields"), [(Kind.TOKENIZE, {}), (Kind.GUTS, {"prompt": ""})])
async def test_a_wrong_value_is_refused_before_the_worker_is_asked(dialect, worker, kind, fields):
    with pytest.raises(WorkerRejected):
        await ask(dialect, worker, kind, **fields)
    assert worker.received == []


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 400}, WorkerRejected),
        ({"status": 429, "retry_after": "7"}, WorkerBusy),
        ({"status": 500}, WorkerFailed),
        ({"status": 503}, WorkerUnreachable),
        ({"garbage": True}, WorkerFailed),
        ({"empty": True}, WorkerFailed),
        ({"die_before_headers": True}, WorkerDied),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_of_the_worker_are_errors_of_the_attempt(
    dialect, worker, faults, error, stream
):
    worker.fail(**faults)
    with pytest.raises(error) as failed:
        await ask(dialect, worker, prompt="a", stream=stream)
    if isinstance(failed.value, WorkerBusy):
        assert failed.value.retry_after == 7


async def test_the_worker_describes_its_model(dialect, worker):
    description = await dialect.describe(candidate(worker).worker)
    assert [model.name for model in description.models] == ["gpt-neo"]
    assert not description.fault
    assert await dialect.describe(candidate(worker, api="grpc://127.0.0.1:1").worker) is None


@pytest.mark.parametrize("header", [(), (("x-api-key", "wr0ng-key"),)])
async def test_a_description_names_a_wrong_key_as_its_fault(dialect, worker, header):
    worker.key = "k1"
    description = await dialect.describe(candidate(worker, headers=header).worker)
    assert "x-api-key" in description.fault
    assert "UNKNOWN): Internal Server Error" in description.fault
    assert "wr0ng" not in description.fault


async def test_an_address_without_a_worker_is_not_alive(dialect, worker):
    nobody = candidate(worker, api="grpc://127.0.0.1:1")
    assert not await dialect.alive(nobody.worker)


async def test_a_worker_with_a_request_in_flight_is_alive_though_it_answers_no_probe(
    dialect, worker
):
    served = candidate(worker).worker
    worker.fail(hang=True, alone=True)
    asking = asyncio.ensure_future(ask(dialect, worker, prompt="a"))
    await until(lambda: worker.received)
    assert await dialect.alive(served)
    asking.cancel()
    await asyncio.wait([asking])
    # A worker without a request in flight has to answer.
    assert not await dialect.alive(served)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(junk=st.binary(max_size=200))
def test_any_message_is_an_answer_or_a_failure(junk):
    request = read(chat(kind=Kind.COMPLETION, body=b'{"model":"m","prompt":"a"}'))
    try:
        reply = methods_of(REMOTELLM)["Generate"].reply_class.FromString(junk)
    except DecodeError:
        return
    with suppress(WorkerError):
        mapping.texts(
            request, [mapping.alternatives(generation) for generation in reply.generations]
        )


def read_guts(**fields: object) -> mapping.InternalsRequest:
    body = orjson.dumps({"model": "m", **fields})
    return mapping.read_guts(Request("r", Kind.GUTS, "m", body, "application/json"))


def test_absent_fields_have_the_values_that_the_protocol_recommends() -> None:
    assert read_guts(prompt="a") == mapping.InternalsRequest(
        "a", fft=True, numbers=20, next=5, others={}
    )


def test_given_fields_override_the_defaults() -> None:
    request = read_guts(prompt="a", fft_embeddings=False, embedding_truncation=0, top_k=0, layer=3)
    assert request == mapping.InternalsRequest(
        "a", fft=False, numbers=0, next=0, others={"layer": 3}
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "fft_embeddings": 1}, "fft_embeddings"),
        ({"prompt": "a", "embedding_truncation": -1}, "embedding_truncation"),
        ({"prompt": "a", "embedding_truncation": mapping.MAX_NUMBERS + 1}, "embedding_truncation"),
        ({"prompt": "a", "top_k": 1.5}, "top_k"),
    ],
)
def test_a_fault_names_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as bad:
        read_guts(**fields)
    assert bad.value.param == param
