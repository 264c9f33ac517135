"""The LocalAI dialect for texts: the requests sent, the answers made from the replies, and failures."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.answer import Answer, Route
from router.canonical.text import read
from router.dialects import Dialect
from router.dialects.localai_grpc import ENDPOINTS, create, reply_parser
from router.dialects.localai_grpc.model_load import model_options
from router.dialects.localai_grpc.request_mapping import COMPLETION_TOKENS
from router.dialects.localai_grpc.texts import MAPPING
from router.errors import (
    AnswerBroken,
    WorkerFailed,
    WorkerLoading,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.openai.usage import Usage
from router.requests import Kind, PassedHeaders
from router.rpc.call import metadata_to
from router.rpc.messages import LOCALAI, methods_of
from router.translate.text import ChoiceReader
from router.workers import Template
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.localai_worker import LocalAIWorker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
ONCE = {"prompt": "Once upon a time"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
KINDS = pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
STREAMS = pytest.mark.parametrize("stream", [False, True])
REPLY = methods_of(LOCALAI)["Predict"].reply_class


async def ask(
    dialect: Dialect,
    worker: LocalAIWorker,
    kind: Kind = Kind.CHAT,
    *,
    template: Template = "",
    load: str = "",
    **fields: object,
) -> tuple[Answer, bytes]:
    defaults = HELLO if kind is Kind.CHAT else ONCE
    body = orjson.dumps({"model": "llama", **defaults, **fields})
    request = chat(kind=kind, body=body, stream=fields.get("stream") is True)
    candidate = own(worker.url)
    assert candidate.worker is not None
    registered = replace(candidate.worker, template=template, load=load)
    async with dialect.answer(request, replace(candidate, worker=registered)) as answer:
        return answer, await whole(answer)


def chunks(body: bytes) -> list[dict[str, Any]]:
    *events, done, end = body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    return [orjson.loads(event[6:]) for event in events]


def texts_of(body: bytes, *, stream: bool) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the texts of all choices, their finish reasons, and the usage of an answer."""
    if not stream:
        payload = orjson.loads(body)
        texts = [
            c["message"]["content"] if "message" in c else c["text"] for c in payload["choices"]
        ]
        return texts, [c["finish_reason"] for c in payload["choices"]], payload["usage"]
    *parts, last = chunks(body)
    choices = [part["choices"][0] for part in parts]
    texts = [""] * (1 + max(choice["index"] for choice in choices))
    for choice in choices:
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return texts, [c["finish_reason"] for c in choices if c["finish_reason"]], last["usage"]


@KINDS
@STREAMS
@pytest.mark.parametrize("faults", [{}, {"split": True}, {"blanks": 3}])
async def test_a_text_is_returned_in_openais_form(
    worker: LocalAIWorker, dialect: Dialect, kind: Kind, stream: bool, faults: dict[str, object]
) -> None:
    worker.fail(**faults)
    worker.words = ("Grüß ", "Gott, ", "世界", "! 🙂")
    answer, body = await ask(dialect, worker, kind, stream=stream)
    texts, reasons, usage = texts_of(body, stream=stream)
    assert (texts, reasons) == (["Grüß Gott, 世界! 🙂"], ["stop"])
    assert (answer.route, answer.streamed) == (Route.LOCAL, stream)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 4)
    assert "estimated" not in usage
    assert worker.calls == ["PredictStream" if stream else "Predict"]


@pytest.mark.parametrize(
    ("usage", "told"), [("sums", (5, 7, False)), ("each", (5, 7, False)), ("zeros", (0, 7, True))]
)
async def test_tokens_are_reported_as_sums_or_per_reply_or_not_at_all(
    worker: LocalAIWorker, dialect: Dialect, usage: str, told: tuple[int, int, bool]
) -> None:
    worker.fail(usage=usage)
    _, body = await ask(dialect, worker, stream=True)
    *_, counts = texts_of(body, stream=True)
    prompt, completion, estimated = told
    assert (counts["completion_tokens"], counts.get("estimated", False)) == (completion, estimated)
    assert estimated or counts["prompt_tokens"] == prompt


@STREAMS
async def test_tokens_that_replies_do_not_report_are_counted_by_the_backend_if_it_can(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(usage="zeros")
    _, body = await ask(dialect, worker, Kind.COMPLETION, stream=stream)
    *_, usage = texts_of(body, stream=stream)
    # The stub counts four bytes as one token.
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 7)
    assert "estimated" not in usage


async def test_a_backend_that_cannot_count_tokens_is_asked_once(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.fail(usage="zeros", lacks=frozenset({"TokenizeString"}))
    for _ in range(2):
        _, body = await ask(dialect, worker, Kind.COMPLETION)
        assert texts_of(body, stream=False)[2]["estimated"]
    assert (worker.calls, worker.refused) == (["Predict", "Predict"], ["TokenizeString"])


async def test_empty_replies_are_no_first_byte(worker: LocalAIWorker) -> None:
    worker.fail(blanks=10**9)
    async with links(QUICK.model_copy(update={"first_byte_timeout": 0.3})) as own_links:
        with pytest.raises(WorkerTimeout, match="first byte"):
            await ask(create(own_links), worker, stream=True)


async def test_a_model_goes_on_loading_when_its_caller_has_left(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.loaded = False
    worker.fail(delay_headers=0.2)
    first = asyncio.ensure_future(ask(dialect, worker, load='{"Model":"x"}'))
    await until(lambda: len(worker.loads) == 1)
    first.cancel()
    async with asyncio.timeout(5):
        while True:
            await asyncio.sleep(0)
            with suppress(WorkerLoading):
                await ask(dialect, worker, load='{"Model":"x"}')
                break
    assert len(worker.loads) == 1


async def test_sampling_fields_that_the_caller_omits_are_sent_with_defaults(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    await ask(dialect, worker, Kind.COMPLETION)
    request = worker.asked
    assert (request.Prompt, request.Tokens, request.TopK) == (ONCE["prompt"], COMPLETION_TOKENS, 40)
    assert (round(request.TopP, 2), round(request.Temperature, 2)) == (0.95, 0.9)
    assert (request.Penalty, request.TypicalP, request.TailFreeSamplingZ) == (1, 1, 1)


async def test_requests_without_a_seed_get_random_seeds(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    for _ in range(4):
        await ask(dialect, worker)
    assert len({request.asked.Seed for request in worker.received}) > 1


async def test_parameters_are_sent_under_the_names_of_the_backend(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    answer, _ = await ask(
        dialect, worker, temperature=0.5, top_p=0.25, top_k=3, max_tokens=9, seed=-1, stop=["a", "b"],
        frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.25, typical_p=0.5,
        logit_bias={"5": 1}, min_p=0.5, logprobs=True,
    )  # fmt: skip
    request = worker.asked
    assert (request.Temperature, request.TopP, request.TopK, request.Tokens) == (0.5, 0.25, 3, 9)
    assert (request.Seed, list(request.StopPrompts)) == (2**31 - 1, ["a", "b"])
    assert (request.FrequencyPenalty, request.PresencePenalty, request.Penalty) == (0.5, -0.5, 1.25)
    assert (request.TypicalP, orjson.loads(request.LogitBias)) == (0.5, {"5": 1})
    assert answer.headers["x-modelvine-dropped-params"] == "min_p, logprobs"


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0}])
async def test_a_zero_temperature_or_top_p_is_sent_as_temperature_0(
    worker: LocalAIWorker, dialect: Dialect, fields: dict[str, object]
) -> None:
    await ask(dialect, worker, **fields)
    assert worker.asked.Temperature == 0


@STREAMS
async def test_each_choice_is_a_call_with_the_next_seed(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    _, body = await ask(
        dialect, worker, Kind.COMPLETION, prompt=["x", "y"], n=2, seed=7, stream=stream, echo=True
    )
    texts, reasons, usage = texts_of(body, stream=stream)
    assert texts == [prompt + SAID for prompt in ("x", "x", "y", "y")]
    assert (reasons, usage["completion_tokens"]) == (["stop"] * 4, 4 * len(WORDS))
    assert [request.asked.Seed for request in worker.received] == [7, 8, 9, 10]
    assert [request.asked.Prompt for request in worker.received] == ["x", "x", "y", "y"]


@STREAMS
async def test_a_stop_string_is_cut_off(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    _, body = await ask(dialect, worker, stop=["you"], stream=stream)
    texts, reasons, _ = texts_of(body, stream=stream)
    assert (texts, reasons) == ([SAID[: SAID.index("you")]], ["stop"])


@STREAMS
@pytest.mark.parametrize("usage", ["sums", "zeros"])
async def test_a_text_with_max_tokens_tokens_ends_with_reason_length(
    worker: LocalAIWorker, dialect: Dialect, stream: bool, usage: str
) -> None:
    worker.fail(usage=usage)
    _, body = await ask(dialect, worker, max_tokens=3, stream=stream)
    texts, reasons, _ = texts_of(body, stream=stream)
    assert texts == ["".join(WORDS[:3])]
    assert reasons == ["length"]


@STREAMS
async def test_an_empty_text_is_an_answer(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(empty=True)
    _, body = await ask(dialect, worker, stream=stream)
    texts, reasons, _ = texts_of(body, stream=stream)
    assert (texts, reasons) == ([""], ["stop"])


async def test_a_chat_uses_the_template_of_the_worker(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi"}]
    await ask(dialect, worker, messages=messages)
    request = worker.asked
    assert request.UseTokenizerTemplate
    assert [(m.role, m.content) for m in request.Messages] == [("system", "be"), ("user", "hi")]
    assert request.Prompt == ""


@STREAMS
async def test_a_failing_template_is_replaced_by_the_nodes_and_not_retried_soon(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(no_template=True)
    for _ in range(2):
        _, body = await ask(dialect, worker, stream=stream)
        assert texts_of(body, stream=stream)[0] == [SAID]
    assert [request.asked.UseTokenizerTemplate for request in worker.received] == [
        True,
        False,
        False,
    ]
    assert worker.asked.Prompt.startswith("<|im_start|>user\nhi<|im_end|>")
    assert "<|im_end|>" in worker.asked.StopPrompts


async def test_a_text_of_the_nodes_template_ends_where_the_next_message_would_begin(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.words = ("So", "<|eot", "_id|>", "user")
    _, body = await ask(dialect, worker, template="llama3", stream=True)
    assert texts_of(body, stream=True)[0] == ["So"]
    assert not worker.asked.UseTokenizerTemplate


async def test_images_are_sent_in_a_field_of_their_own_and_never_fetched(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    def seen(url: str) -> list[dict[str, object]]:
        parts = [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        return [{"role": "user", "content": parts}]

    await ask(dialect, worker, messages=seen("data:image/png;base64,iVBORw0="))
    assert list(worker.asked.Images) == ["iVBORw0="]
    assert worker.asked.Messages[0].content == "what?"
    for url in ("http://192.0.2.1/x.png", "data:text/html,x", "file:///etc/passwd"):
        with pytest.raises(WorkerUnable):
            await ask(dialect, worker, messages=seen(url))


async def test_audio_and_video_are_sent_in_fields_of_their_own(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    def heard(part: dict[str, object]) -> list[dict[str, object]]:
        return [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]

    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    film = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    await ask(dialect, worker, messages=[*heard(sound), *heard(film)])
    assert (list(worker.asked.Audios), list(worker.asked.Videos)) == (["UklGRg=="], ["AAAA"])
    assert [message.content for message in worker.asked.Messages] == ["what?", "what?"]
    for part in (
        {"type": "video_url", "video_url": {"url": "http://192.0.2.1/x.mp4"}},
        {"type": "input_audio", "input_audio": {"data": "/etc/passwd\n"}},
        {"type": "file", "file": {}},
    ):
        with pytest.raises(WorkerUnable):
            await ask(dialect, worker, messages=heard(part))


@pytest.mark.parametrize(("seed", "named"), [(2**31, True), (2**63 - 1, True), (2**31 - 1, False)])
async def test_a_seed_beyond_31_bits_is_named_as_dropped(
    worker: LocalAIWorker, dialect: Dialect, seed: int, named: bool
) -> None:
    answer, _ = await ask(dialect, worker, seed=seed)
    assert answer.headers.get("x-modelvine-dropped-params", "") == ("seed" if named else "")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [LOOK]}, "tools"),
        ({"tools": [LOOK], "tool_choice": "required"}, "tools"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages"),
    ],
)
async def test_a_field_that_would_change_the_answer_is_refused_by_name(
    worker: LocalAIWorker, dialect: Dialect, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(WorkerUnable) as refused:
        await ask(dialect, worker, **fields)
    assert refused.value.param == param
    assert worker.received == []


async def test_a_wrong_value_is_refused(worker: LocalAIWorker, dialect: Dialect) -> None:
    with pytest.raises(WorkerRejected):
        await ask(dialect, worker, logit_bias={"5": "much"})


@STREAMS
async def test_a_schema_is_sent_as_a_grammar_and_an_answer_that_is_not_json_fails(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    response_format = {"type": "json_object"}
    with pytest.raises(WorkerFailed, match="JSON"):
        await ask(dialect, worker, response_format=response_format, stream=stream)
    assert worker.asked.Grammar.startswith("root ::= object")
    worker.words = ("{", '"a"', ":1}")
    _, body = await ask(dialect, worker, response_format=response_format, stream=stream)
    assert texts_of(body, stream=stream)[0] == ['{"a":1}']
    assert set(worker.calls) == {"Predict"}


@STREAMS
async def test_a_model_is_loaded_before_it_is_first_asked_and_after_a_restart(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    worker.loaded = False
    load = '{"Model":"tiny.gguf","context_size":512,"CUDA":true,"lora-scales":[0.5]}'
    await ask(dialect, worker, load=load, stream=stream)
    await ask(dialect, worker, load=load, stream=stream)
    [options] = worker.loads
    assert (options.Model, options.ContextSize, options.CUDA) == ("tiny.gguf", 512, True)
    assert list(options.LoraScales) == [0.5]
    worker.loaded = False
    await ask(dialect, worker, load=load, stream=stream)
    assert len(worker.loads) == 2


async def test_a_failed_load_is_reported_with_its_reason(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.loaded = False
    worker.fail(load_fails=True)
    with pytest.raises(WorkerFailed, match="LoadModel failed: Unexpected err=OSError"):
        await ask(dialect, worker, load='{"Model":"x"}')


async def test_without_options_nothing_is_loaded(worker: LocalAIWorker, dialect: Dialect) -> None:
    worker.loaded = False
    with pytest.raises(WorkerFailed):
        await ask(dialect, worker)
    assert worker.loads == []


async def test_a_request_during_a_load_is_told_that_the_model_is_loading(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.fail(delay_headers=0.3)
    first = asyncio.ensure_future(ask(dialect, worker, load='{"Model":"x"}'))
    await until(lambda: len(worker.loads) == 1)
    with pytest.raises(WorkerLoading):
        await ask(dialect, worker, load='{"Model":"x"}')
    await first


@pytest.mark.parametrize("load", ['{"Colour":"red"}', '{"ContextSize":"many"}', '{"LoraScales":1}'])
async def test_an_unknown_or_wrong_load_option_fails(
    worker: LocalAIWorker, dialect: Dialect, load: str
) -> None:
    with pytest.raises(WorkerFailed, match="load option"):
        await ask(dialect, worker, load=load)
    assert worker.loads == []


def test_flash_attention_is_encoded_for_old_servers_and_for_new_ones() -> None:
    candidate = own("grpc://127.0.0.1:1")
    assert candidate.worker is not None
    for load, old, new in (
        ("true", True, b"on"),
        ('"off"', False, b"off"),
        ('"auto"', True, b"auto"),
    ):
        worker = replace(candidate.worker, load=f'{{"FlashAttention":{load}}}')
        encoded = model_options(worker).SerializeToString()
        assert (
            methods_of(LOCALAI)["LoadModel"].request_class.FromString(encoded).FlashAttention is old
        )
        assert bytes([0xC2, 0x03, len(new)]) + new in encoded


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_a_call_that_the_backend_lacks_makes_it_unable(
    worker: LocalAIWorker, dialect: Dialect, fields: dict[str, object]
) -> None:
    worker.fail(lacks=frozenset({"Predict", "PredictStream"}))
    with pytest.raises(WorkerUnable):
        await ask(dialect, worker, **fields)


@pytest.mark.parametrize("faults", [{"die_after": 3}, {"fail_after": 3}])
async def test_a_failure_in_mid_stream_breaks_the_answer(
    worker: LocalAIWorker, dialect: Dialect, faults: dict[str, object]
) -> None:
    worker.fail(**faults, delay_between=0.01)
    async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
        with pytest.raises(AnswerBroken) as broken:
            await whole(answer)
    assert answer.broken is broken.value


async def test_a_backend_at_work_for_the_node_is_alive_though_it_answers_no_probe(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    candidate = own(worker.url)
    assert candidate.worker is not None
    worker.fail(serial=True, delay_first=3)
    asking = asyncio.ensure_future(ask(dialect, worker))
    await until(worker.at_work.locked)
    assert await dialect.alive(candidate.worker)
    asking.cancel()
    await asyncio.wait([asking])


async def test_callers_that_leave_at_any_moment_leave_nothing_behind(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    worker.fail(delay_first=0.002, delay_between=0.002)
    await ask(dialect, worker)
    before = len(asyncio.all_tasks())

    async def one(number: int) -> None:
        request = chat(stream=number % 2 == 0)
        async with dialect.answer(request, own(worker.url)) as answer:
            if number % 5:
                await whole(answer)

    loop = asyncio.get_running_loop()
    callers = [asyncio.ensure_future(one(number)) for number in range(120)]
    for number, caller in enumerate(callers[::3]):
        loop.call_later(number / 1_000, caller.cancel)
    await asyncio.wait(callers)
    assert all(caller.cancelled() or caller.exception() is None for caller in callers)
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert worker.wire.opened == 1


async def test_a_backend_that_is_gone_is_not_alive(worker: LocalAIWorker, dialect: Dialect) -> None:
    candidate = own(worker.url)
    assert candidate.worker is not None
    assert await dialect.alive(candidate.worker)
    nobody = replace(candidate.worker, api="grpc://127.0.0.1:1")
    assert not await dialect.alive(nobody)
    with pytest.raises(WorkerUnreachable):
        async with dialect.answer(chat(), replace(candidate, worker=nobody)):
            pass


@given(
    st.lists(
        st.tuples(st.binary(max_size=8), st.integers(-5, 2**31 - 1), st.integers(-5, 2**31 - 1))
    )
)
def test_any_replies_give_a_text_that_ends_with_its_usage(
    replies: list[tuple[bytes, int, int]],
) -> None:
    request = read(chat(stream=True))
    reader = ChoiceReader(request, reply_parser.ReplyTexts(request, 0, {"Tokens": 5}).read)
    messages = [REPLY(message=m, tokens=t, prompt_tokens=p) for m, t, p in replies]
    events = [event for reply in (*messages, None) for event in reader.feed(reply)]
    assert reader.ended
    usage = events[-1]
    assert isinstance(usage, Usage)
    assert usage.prompt >= 0
    assert usage.completion >= 0


def test_the_text_kept_for_counting_is_bounded() -> None:
    replies = reply_parser.ReplyTexts(read(chat()), 0, {"Tokens": 0})
    for _ in range(5):
        replies.read(read(chat()), REPLY(message=b"x" * (reply_parser.COUNTABLE // 2)))
    assert reply_parser.COUNTABLE < len(replies.text) <= 2 * reply_parser.COUNTABLE


def test_metadata_of_a_call_has_lower_case_names_and_ascii_values_only() -> None:
    candidate = own("grpc://127.0.0.1:1")
    assert candidate.worker is not None
    passed = {"traceparent": "00-1-2-01", "tracestate": "ä"}
    metadata = metadata_to(candidate.worker, replace(chat(), passed=PassedHeaders(passed)))
    assert metadata == {"x-request-id": "r-1", "traceparent": "00-1-2-01"}


def test_other_kinds_are_refused_as_texts() -> None:
    worker = own("grpc://127.0.0.1:1").worker
    assert worker is not None
    with pytest.raises(WorkerUnable):
        MAPPING.read(chat(kind=Kind.IMAGE), worker)


def test_every_rpc_has_an_entry_in_the_table_of_endpoints() -> None:
    assert list(ENDPOINTS) == list(methods_of(LOCALAI))


async def test_a_backend_without_a_model_is_not_ready_unless_it_has_load_options(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    plain = own(worker.url).worker
    assert plain is not None
    assert await dialect.describe(plain)
    worker.loaded = False
    assert await dialect.describe(plain) is None
    assert await dialect.describe(replace(plain, load='{"Model":"m"}'))
    worker.state = -1
    assert await dialect.describe(replace(plain, load='{"Model":"m"}')) is None
    # Backends written in Python lack it.
    worker.fail(lacks=frozenset({"Status"}))
    assert await dialect.describe(plain)


@STREAMS
@KINDS
@pytest.mark.parametrize("most", [None, 31, 29])
async def test_uncounted_tokens_are_estimated_alike_in_streams_and_whole_answers(
    worker: LocalAIWorker, dialect: Dialect, kind: Kind, stream: bool, most: int | None
) -> None:
    worker.words = ("x" * 117, " ", "€")
    worker.fail(usage="zeros", lacks=frozenset({"TokenizeString"}))
    limit = {} if most is None else {"max_tokens": most}
    _, body = await ask(dialect, worker, kind, stream=stream, **(limit or {"max_tokens": 1_000}))
    _, reasons, usage = texts_of(body, stream=stream)
    assert (usage["completion_tokens"], usage["estimated"]) == (31, True)
    assert reasons == ["stop" if most is None else "length"]


@STREAMS
async def test_the_backends_later_count_decides_the_finish_reason(
    worker: LocalAIWorker, dialect: Dialect, stream: bool
) -> None:
    worker.words = ("x" * 40,)
    worker.fail(usage="zeros")
    for limit, reason in ((10, "length"), (11, "stop")):
        _, body = await ask(dialect, worker, Kind.COMPLETION, stream=stream, max_tokens=limit)
        assert texts_of(body, stream=stream)[1] == [reason]


async def test_a_reported_failure_never_quotes_the_prompt(
    worker: LocalAIWorker, dialect: Dialect
) -> None:
    prompt = "a secret that nobody may read in a log"
    for message, expected in (
        ("KeyError: 'x'", "KeyError: 'x'"),
        (f"bad: {prompt}", "quotes the request"),
    ):
        worker.fail(code="UNKNOWN", refusal=message.encode())
        with pytest.raises(WorkerFailed, match=f"UNKNOWN: .*{expected}") as failed:
            await ask(dialect, worker, Kind.COMPLETION, prompt=prompt)
        assert "secret" not in str(failed.value)
