"""The Llama Stack dialect: the requests sent, the answers made from the server's messages, and failures."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.answer import Answer
from router.canonical.text import read
from router.dialects import Dialect
from router.dialects.llama_stack_http import create, part
from router.dialects.llama_stack_http import whole as all_of_it
from router.errors import (
    AnswerBroken,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
)
from router.http.translated_stream import NoSuchPath
from router.openai.text_writer import Event, TextForm
from router.openai.usage import Usage
from router.requests import Kind
from router.translate.text import ChoiceReader
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.llama_stack_worker import LlamaStackWorker, running
from tests.workers.openai_worker import WORDS as SPOKEN

SAID = "".join(SPOKEN)
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
PNG = "data:image/png;base64,aa"
STREAMS = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def worker() -> AsyncIterator[LlamaStackWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as own_links:
        yield create(own_links)


async def ask(
    dialect: Dialect, worker: LlamaStackWorker, *, kind: Kind = Kind.CHAT, model: str = "", **fields: object
) -> tuple[Answer, bytes]:  # fmt: skip
    body = orjson.dumps({"model": "llama", "prompt": "Once", **HELLO, **fields})
    request = chat(kind=kind, body=body, stream=fields.get("stream") is True)
    async with dialect.answer(request, own(worker.url, model=model)) as answer:
        return answer, await whole(answer)


def texts_of(body: bytes, *, stream: bool) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the texts and the finish reasons of all choices, and the usage."""
    if not stream:
        payload = orjson.loads(body)
        texts = [choice["message"]["content"] for choice in payload["choices"]]
        return texts, [choice["finish_reason"] for choice in payload["choices"]], payload["usage"]
    *events, done, end = body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    parts = [orjson.loads(event[6:]) for event in events]
    streamed: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for payload in parts for choice in payload["choices"]):
        index = choice["index"]
        streamed[index] = streamed.get(index, "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"]:
            reasons[index] = choice["finish_reason"]
    usages = [payload["usage"] for payload in parts if "usage" in payload]
    total = {name: sum(usage[name] for usage in usages) for name in usages[0]}
    return [streamed[n] for n in sorted(streamed)], [reasons[n] for n in sorted(reasons)], total


def text_of(body: bytes, *, stream: bool) -> tuple[str, str, dict[str, Any]]:
    [text], [reason], usage = texts_of(body, stream=stream)
    return text, reason, usage


USED = {"prompt_tokens": 5, "completion_tokens": len(SPOKEN), "total_tokens": 5 + len(SPOKEN)}


@STREAMS
@pytest.mark.parametrize(
    "faults", [{"split": True}, {"wrapped": True}, {"plain": True}, {"seed_only": True}], ids=str
)
async def test_a_text_is_returned_in_openais_form_whatever_the_form_of_the_worker(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool, faults: dict[str, object]
) -> None:
    worker.fail(**faults)
    answer, body = await ask(dialect, worker, stream=stream)
    assert text_of(body, stream=stream) == (SAID, "stop", USED)
    assert answer.streamed is stream
    assert "dropped" not in str(dict(answer.headers))
    assert worker.received[0].path == "/inference"
    if not stream:
        assert answer.usage == Usage(5, len(SPOKEN))


async def test_a_stream_is_passed_on_as_it_comes(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    worker.fail(delay_between=0.02)
    async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
        chunks = [answer.first, *[chunk async for chunk in answer.rest]]
    assert len(chunks) >= len(SPOKEN)
    assert "text/event-stream" in worker.received[0].headers["accept"]


@STREAMS
async def test_usage_that_the_worker_does_not_report_is_estimated(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(unsaid=True)
    _, body = await ask(dialect, worker, stream=stream)
    usage = text_of(body, stream=stream)[2]
    assert usage["estimated"]
    assert usage["prompt_tokens"] > 0


@STREAMS
@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "stop"), ("max-length", "length"), ("safety", "content_filter")]
)
async def test_finish_reasons_are_translated_to_openais(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool, finish: str, reason: str
) -> None:
    worker.fail(finish=finish)
    _, body = await ask(dialect, worker, stream=stream)
    assert text_of(body, stream=stream)[1] == reason


@STREAMS
async def test_stop_strings_are_found_by_the_router(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool
) -> None:
    answer, body = await ask(dialect, worker, stream=stream, stop=["zz", "how"])
    assert text_of(body, stream=stream)[:2] == (SAID[: SAID.index("how")], "stop")
    assert "stop" not in worker.asked
    assert "dropped" not in str(dict(answer.headers))


async def test_a_stop_string_in_a_stream_ends_the_work_of_the_worker(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    worker.fail(delay_between=0.05)
    await ask(dialect, worker, stream=True, stop="there")
    await until(lambda: worker.hung_up == 1)


async def test_a_request_is_translated_to_llama_stacks_form(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "name": "Ann", "content": [
            {"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": PNG}},
            {"type": "text", "text": "is it?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.JPG?x=1"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/b"}},
        ]},
        {"role": "assistant", "content": None},
    ]  # fmt: skip
    await ask(
        dialect, worker, model="own/name", messages=messages, max_tokens=9, temperature=0, top_p=0.5, user="x", store=False
    )  # fmt: skip
    assert worker.asked == {
        "model": "own/name",
        "messages": [
            {"role": "system", "text": "be kind"},
            {"role": "user", "text": "what\nis it?", "metadata": {"name": "Ann"}, "attachments": [
                {"uri": PNG, "mime-type": "image/png"},
                {"uri": "https://example.org/a.JPG?x=1", "mime-type": "image/jpeg"},
                {"uri": "https://example.org/b"},
            ]},
            {"role": "assistant", "text": ""},
        ],
        "options": {"max_tokens": 9, "temperature": 0, "top_p": 0.5},
    }  # fmt: skip


async def test_fields_that_change_nothing_are_not_sent(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    await ask(dialect, worker, top_p=1, n=1, frequency_penalty=0, tools=[LOOK], tool_choice="none")
    assert worker.asked == {"model": "llama", "messages": [{"role": "user", "text": "hi"}]}


@STREAMS
async def test_several_choices_are_requested_as_candidates_without_a_stream(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool
) -> None:
    _, body = await ask(dialect, worker, stream=stream, n=3)
    texts, reasons, usage = texts_of(body, stream=stream)
    assert (texts, reasons) == ([SAID] * 3, ["stop"] * 3)
    assert usage["prompt_tokens"] == 5
    assert usage["completion_tokens"] == 3 * len(SPOKEN)
    # The pieces of a stream do not say which candidate they belong to.
    assert (worker.asked["n_completions"], "stream" in worker.asked) == (3, False)


async def test_the_prompt_counts_once_for_all_candidates(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    worker.fail(unsaid=True)
    _, one = await ask(dialect, worker)
    _, three = await ask(dialect, worker, n=3)
    first, all_three = (orjson.loads(body)["usage"] for body in (one, three))
    assert all_three["prompt_tokens"] == first["prompt_tokens"]
    assert all_three["completion_tokens"] == 3 * first["completion_tokens"]


@STREAMS
async def test_a_worker_that_gives_fewer_texts_than_requested_is_unable(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(candidates=1)
    with pytest.raises(WorkerUnable) as unable:
        await ask(dialect, worker, stream=stream, n=2)
    assert unable.value.param == "n"


@STREAMS
async def test_parameters_without_effect_are_named(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool
) -> None:
    dropped = {"seed": 5, "top_k": 4, "presence_penalty": 1, "logprobs": True, "x_own": 1}
    answer, _ = await ask(dialect, worker, stream=stream, **dropped)
    ignored = answer.headers["x-modelvine-dropped-params"]
    assert ignored == "presence_penalty, seed, top_k, logprobs, x_own"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [LOOK]}, "tools"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"kind": Kind.COMPLETION}, "model"),
        ({"kind": Kind.EMBEDDING}, "model"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            "messages",
        ),
    ],
    ids=str,
)
async def test_a_field_that_would_change_the_kind_of_answer_is_refused_without_asking_the_worker(
    worker: LlamaStackWorker, dialect: Dialect, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(WorkerUnable) as refused:
        await ask(dialect, worker, **fields)
    assert (refused.value.param, worker.received) == (param, [])


@STREAMS
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (b'[{"q":"cats"},{"n":2}]', '{"q":"cats","n":2}'),
        (b'{"q":"cats"}', '{"q":"cats"}'),
        (b"null", "{}"),
    ],
)
async def test_a_call_of_a_built_in_tool_is_a_tool_call(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool, arguments: bytes, said: str
) -> None:
    worker.fail(tool=b'{"name":"brave_search","arguments":%b}' % arguments)
    _, body = await ask(dialect, worker, stream=stream)
    assert texts_of(body, stream=stream)[1] == ["tool_calls"]
    events = [b"data: " + body] if not stream else body.split(b"\n\n")[:-2]
    choices = [c for event in events for c in orjson.loads(event[6:])["choices"]]
    messages = [choice.get("delta") or choice.get("message") for choice in choices]
    [[call]] = [w["tool_calls"] for w in messages if w and w.get("tool_calls")]
    assert call["function"] == {"name": "brave_search", "arguments": said}
    assert call["id"].startswith("call_")


@STREAMS
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 422}, WorkerRejected),
        ({"status": 429}, WorkerBusy),
        ({"status": 503, "retry_after": "3"}, WorkerBusy),
        ({"status": 500}, WorkerFailed),
        ({"status": 404}, NoSuchPath),
        ({"status": 501}, WorkerFailed),
        ({"garbage": True}, WorkerFailed),
        ({"empty": True}, WorkerFailed),
        ({"error_after": 0}, WorkerFailed),
        ({"die_before_headers": True}, WorkerDied),
        ({"roles": frozenset({"tool"})}, WorkerRejected),
    ],
    ids=str,
)
async def test_each_failure_before_the_first_byte_has_its_own_error(
    worker: LlamaStackWorker, dialect: Dialect, stream: bool, faults: dict[str, object], error: type[WorkerError],
) -> None:  # fmt: skip
    worker.fail(**faults)
    with pytest.raises(error) as failed:
        await ask(dialect, worker, stream=stream)
    assert type(failed.value) is error


@pytest.mark.parametrize(
    "faults", [{"error_after": 3}, {"die_after": 3}, {"end_after": 3}], ids=str
)
async def test_a_stream_without_its_end_is_broken(
    worker: LlamaStackWorker, dialect: Dialect, faults: dict[str, object]
) -> None:
    worker.fail(delay_between=0.01, **faults)
    async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
        with pytest.raises(AnswerBroken):
            await whole(answer)
    assert isinstance(answer.broken, AnswerBroken)


async def test_a_worker_that_never_answers_times_out(worker: LlamaStackWorker) -> None:
    worker.fail(hang=True)
    async with links(QUICK.model_copy(update={"first_byte_timeout": 0.2})) as hasty:
        with pytest.raises(WorkerTimeout):
            await ask(create(hasty), worker, stream=True)


async def test_a_worker_that_answers_a_probe_at_all_is_alive(
    worker: LlamaStackWorker, dialect: Dialect
) -> None:
    # The server has no path for the probe: 405 is an answer.
    assert await dialect.alive(known(worker.url))
    assert not await dialect.alive(known("http://127.0.0.1:1"))
    assert await dialect.slots(known(worker.url)) == 0


def known(url: str) -> Any:
    return own(url).worker


WORDS_OF_IT = st.sampled_from([
    "candidates", "text", "usage", "input_tokens", "output_tokens", "finish_reason", "max-length", "is_complete", "eot", "error",
    "tool_call", "name", "arguments", "id", "stop", "hi",
])  # fmt: skip
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | NUMBERS | WORDS_OF_IT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS_OF_IT, inner, max_size=4),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"text": st.text(max_size=3)},
    optional={"finish_reason": JSON, "is_complete": JSON, "eot": JSON, "tool_call": JSON},
)
USAGE = st.fixed_dictionaries({"input_tokens": NUMBERS, "output_tokens": NUMBERS})
SOMETHING = JSON | MESSAGE | st.fixed_dictionaries(
    {"candidates": st.lists(MESSAGE | JSON, max_size=3)}, optional={"usage": USAGE | JSON}
)  # fmt: skip


@given(SOMETHING, st.sampled_from([1, 2]))
def test_any_message_of_a_worker_is_an_answer_or_a_failure(said: object, n: int) -> None:
    request = read(chat(body=orjson.dumps({"model": "m", **HELLO, "n": n})))
    form = TextForm("x", 1, "m", Kind.CHAT)
    whole_answer = partial(all_of_it, request, 0)
    tellers: list[Callable[[bytes], list[Event]]] = [
        ChoiceReader(request, part).feed,
        lambda body: whole_answer(body, lambda _: ""),
    ]
    for tell in tellers:
        try:
            events = tell(orjson.dumps(said))
        except WorkerError:
            continue
        written, usage = form.whole_answer(events)
        assert orjson.loads(written)["usage"]["prompt_tokens"] == usage.prompt
        assert 0 <= usage.prompt <= 2**54
        assert all(map(form.event, events))
