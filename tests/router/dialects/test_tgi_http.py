"""The TGI dialect: the requests sent, the answers and tokens made from the messages of the server, and failures."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.answer import Answer, Route
from router.canonical.text import read
from router.dialects import Dialect
from router.dialects.tgi_http import MAPPING, create
from router.dialects.tgi_http.answer_parser import part, read_token_answer
from router.dialects.tgi_http.answer_parser import whole as in_one_piece
from router.dialects.tgi_http.request_mapping import CHAT_TOKENS, COMPLETION_TOKENS
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
from router.http.translator import endpoint
from router.openai.text_writer import TextForm
from router.openai.usage import Usage
from router.peers.headers import DROPPED
from router.requests import Kind
from router.translate.text import ChoiceReader
from router.worker_description import OfferedModel, WorkerDescription
from router.worker_metrics import Figure, LoadReporting
from router.workers import Worker
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.openai_worker import WORDS as SPOKEN
from tests.workers.tgi_worker import TgiWorker, running

SAID = "".join(SPOKEN)
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
ONCE = {"prompt": "Once upon a time"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "x": 1}}}
WORKER = own("http://127.0.0.1:1").worker
KINDS = pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
STREAMS = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def worker() -> AsyncIterator[TgiWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as own_links:
        yield create(own_links)


async def ask(
    dialect: Dialect, worker: TgiWorker, kind: Kind, **fields: object
) -> tuple[Answer, bytes]:
    defaults = HELLO if kind is Kind.CHAT else ONCE
    body = orjson.dumps({"model": "llama", **defaults, **fields})
    request = chat(kind=kind, body=body, stream=fields.get("stream") is True)
    async with dialect.answer(request, own(worker.url)) as answer:
        return answer, await whole(answer)


def chunks(body: bytes) -> list[dict[str, Any]]:
    *events, done, end = body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    return [orjson.loads(event[6:]) for event in events]


def text_of(body: bytes, kind: Kind, *, stream: bool) -> tuple[str, str, dict[str, Any]]:
    """Return text, reason and usage of an answer with one choice."""
    if not stream:
        payload = orjson.loads(body)
        [choice] = payload["choices"]
        text = choice["message"]["content"] if kind is Kind.CHAT else choice["text"]
        return text, choice["finish_reason"], payload["usage"]
    *parts, last = chunks(body)
    choices = [part["choices"][0] for part in parts]
    if kind is Kind.CHAT:
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
    else:
        text = "".join(choice["text"] for choice in choices)
    [reason] = [c["finish_reason"] for c in choices if c["finish_reason"]]
    return text, reason, last["usage"]


@pytest.mark.parametrize(
    ("api", "url"),
    [
        ("http://h:1", "http://h:1/generate"),
        ("http://h:1/", "http://h:1/generate"),
        ("http://h:1/generate", "http://h:1/generate"),
        ("http://h:1/tgi/generate_stream", "http://h:1/tgi/generate"),
        ("http://h:1/v1", "http://h:1/generate"),
        ("http://h:1/x/v1/chat/completions?k=1", "http://h:1/x/generate?k=1"),
    ],
)
def test_paths_are_derived_from_any_registered_url(api: str, url: str) -> None:
    assert str(endpoint(api, "generate", MAPPING.paths)) == url


@KINDS
@STREAMS
async def test_a_text_is_returned_in_openais_form(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool
) -> None:
    worker.fail(split=True)
    answer, body = await ask(dialect, worker, kind, stream=stream)
    text, reason, usage = text_of(body, kind, stream=stream)
    assert (text, reason, answer.route) == (SAID, "stop", Route.LOCAL)
    assert answer.streamed is stream
    assert "dropped" not in str(dict(answer.headers))
    if not stream:
        assert answer.usage == Usage(5, len(SPOKEN))
        assert (usage["prompt_tokens"], "estimated" in usage) == (5, False)
        assert orjson.loads(body)["id"].endswith("-r-1")
    else:
        # A TGI stream does not count the prompt's tokens, so they are estimated and marked as such.
        assert (usage["estimated"], answer.hides_usage) == (True, True)
        assert usage["completion_tokens"] == (len(SPOKEN) if kind is Kind.CHAT else len(SPOKEN) + 1)


async def test_the_prompt_tokens_that_a_newer_server_reports_are_used(
    worker: TgiWorker, dialect: Dialect
) -> None:
    worker.fail(input_length=9)
    answer, body = await ask(
        dialect, worker, Kind.COMPLETION, stream=True, stream_options={"include_usage": True}
    )
    assert not answer.hides_usage
    assert chunks(body)[-1]["usage"] == {
        "prompt_tokens": 9, "completion_tokens": len(SPOKEN) + 1, "total_tokens": 10 + len(SPOKEN),
    }  # fmt: skip


@KINDS
@STREAMS
@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "length"), ("eos_token", "stop"), ("stop_sequence", "stop")]
)
async def test_finish_reasons_are_translated_to_openais(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool, finish: str, reason: str
) -> None:
    worker.fail(finish=finish)
    _, body = await ask(dialect, worker, kind, stream=stream)
    assert text_of(body, kind, stream=stream)[1] == reason


@KINDS
@STREAMS
@pytest.mark.parametrize("stops", [["how", "zz"], [*"12345", "w are"]])
async def test_a_text_ends_before_a_stop_string_found_by_the_worker_or_the_router(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool, stops: list[str]
) -> None:
    _, body = await ask(dialect, worker, kind, stream=stream, stop=stops)
    text, reason, _ = text_of(body, kind, stream=stream)
    assert (text, reason) == (
        SAID[: SAID.index(stops[-1] if "how" not in stops else "how")],
        "stop",
    )


@KINDS
@STREAMS
async def test_values_that_tgi_would_refuse_are_not_sent(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool
) -> None:
    traps = {"temperature": 0, "top_p": 1.0, "n": 1, "logit_bias": None, "max_tokens": None}
    await ask(dialect, worker, kind, stream=stream, user="somebody", seed=0, **traps)
    fields = worker.asked
    if kind is Kind.CHAT:
        assert (fields["model"], fields["temperature"]) == ("tgi", 0)
        assert (fields["max_tokens"], fields["seed"]) == (CHAT_TOKENS, 2**63 - 1)
        return
    parameters: Any = fields["parameters"]
    assert (parameters["do_sample"], "temperature" in parameters, "top_p" in parameters) == (
        False,
        False,
        False,
    )
    assert parameters["max_new_tokens"] == COMPLETION_TOKENS


async def test_sampling_parameters_are_translated_to_tgis(
    worker: TgiWorker, dialect: Dialect
) -> None:
    drawn = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "typical_p": 0.3,
        "frequency_penalty": 1.5,
    }
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
    await ask(
        dialect, worker, Kind.COMPLETION, max_tokens=9, repetition_penalty=1.2, seed=3, stop="x",
        response_format=schema, **drawn,
    )  # fmt: skip
    assert worker.asked == {
        "inputs": "Once upon a time",
        "parameters": {
            **drawn, "max_new_tokens": 9, "repetition_penalty": 1.2, "seed": 3, "do_sample": True, "stop": ["x"],
            "grammar": {"type": "json", "value": {"type": "array"}}, "details": True, "return_full_text": False,
        },
    }  # fmt: skip


@KINDS
async def test_a_regular_expression_is_sent_as_a_grammar(
    worker: TgiWorker, dialect: Dialect, kind: Kind
) -> None:
    answer, _ = await ask(dialect, worker, kind, guided_regex="a+")
    grammar = {"type": "regex", "value": "a+"}
    fields = worker.asked
    assert fields.get("response_format", fields.get("parameters", {}).get("grammar")) == grammar
    assert answer.headers == {}
    with pytest.raises(WorkerRejected):
        await ask(dialect, worker, kind, guided_regex=5)


async def test_several_choices_are_requested_one_by_one(
    worker: TgiWorker, dialect: Dialect
) -> None:
    _, body = await ask(dialect, worker, Kind.COMPLETION, prompt=["a", "b"], n=2, seed=5, echo=True)
    bodies = [orjson.loads(received.body) for received in worker.received]
    assert [(a["inputs"], a["parameters"]["seed"]) for a in bodies] == [
        ("a", 5), ("a", 6), ("b", 7), ("b", 8),
    ]  # fmt: skip
    payload = orjson.loads(body)
    assert [c["text"] for c in payload["choices"]] == [
        f"a{SAID}",
        f"a{SAID}",
        f"b{SAID}",
        f"b{SAID}",
    ]
    assert payload["usage"]["prompt_tokens"] == 20


def test_many_choices_share_one_copy_of_the_messages() -> None:
    body = orjson.dumps({"model": "m", **HELLO, "n": 128, "seed": 2**63 - 1})
    bodies = MAPPING.read(chat(body=body), WORKER)[1].bodies
    assert len({id(sent["messages"]) for sent in bodies}) == 1
    seeds: Any = [sent["seed"] for sent in bodies]
    assert len(set(seeds)) == 127  # zero is none
    assert all(0 < seed < 2**63 for seed in seeds)


async def test_an_echo_stands_before_a_stream(worker: TgiWorker, dialect: Dialect) -> None:
    _, body = await ask(dialect, worker, Kind.COMPLETION, echo=True, stream=True, stop="Once")
    assert text_of(body, Kind.COMPLETION, stream=True)[0] == f"Once upon a time{SAID}"


@STREAMS
async def test_parameters_without_effect_are_named(
    worker: TgiWorker, dialect: Dialect, stream: bool
) -> None:
    dropped = {"presence_penalty": 1, "min_p": 0.1, "logit_bias": {"5": 1}, "x_own": 1}
    answer, _ = await ask(dialect, worker, Kind.COMPLETION, stream=stream, **dropped)
    assert (
        answer.headers["x-modelvine-dropped-params"] == "min_p, presence_penalty, logit_bias, x_own"
    )
    answer, _ = await ask(dialect, worker, Kind.CHAT, stream=stream, top_k=5, top_logprobs=2)
    assert answer.headers["x-modelvine-dropped-params"] == "top_k, top_logprobs"


def likely(body: bytes, *, stream: bool) -> list[Any]:
    """Return the `logprobs` of an answer, piece by piece."""
    answers = chunks(body) if stream else [orjson.loads(body)]
    choices = [choice for answer in answers for choice in answer["choices"]]
    return [choice["logprobs"] for choice in choices if choice["logprobs"]]


@STREAMS
async def test_a_chat_returns_the_log_probabilities_of_its_tokens(
    worker: TgiWorker, dialect: Dialect, stream: bool
) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "stream": stream}
    answer, body = await ask(dialect, worker, Kind.CHAT, **fields)
    assert "x-modelvine-dropped-params" not in answer.headers
    assert (worker.asked["logprobs"], worker.asked["top_logprobs"]) == (True, 2)
    tokens = [token for piece in likely(body, stream=stream) for token in piece["content"]]
    assert [token["token"] for token in tokens] == list(SPOKEN)
    assert {token["logprob"] for token in tokens} == {-0.5}
    assert [alternative["token"] for alternative in tokens[0]["top_logprobs"]] == [
        SPOKEN[0],
        "other0",
    ]


@STREAMS
async def test_a_completion_returns_the_log_probabilities_of_its_tokens(
    worker: TgiWorker, dialect: Dialect, stream: bool
) -> None:
    fields = {"logprobs": 2, "stream": stream, "echo": True}
    answer, body = await ask(dialect, worker, Kind.COMPLETION, **fields)
    assert "x-modelvine-dropped-params" not in answer.headers
    parameters: Any = worker.asked["parameters"]
    assert parameters["top_n_tokens"] == 2
    pieces = likely(body, stream=stream)
    columns = {name: [value for piece in pieces for value in piece[name]] for name in pieces[0]}
    assert columns["tokens"] == list(SPOKEN)
    assert columns["token_ids"] == list(range(len(SPOKEN)))
    assert columns["text_offset"][:2] == [16, 16 + len(SPOKEN[0])]
    assert columns["top_logprobs"][1] == {SPOKEN[1]: -0.5, "other0": -1.5}


@KINDS
@STREAMS
async def test_tokens_after_a_stop_string_are_left_out(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool
) -> None:
    worker.words = ("one", " two", " thr", "ee", " four")
    # More than TGI takes: the router finds the fifth.
    fields = {"stop": ["a~", "b~", "c~", "d~", " three"], "stream": stream}
    fields |= {"logprobs": True} if kind is Kind.CHAT else {"logprobs": 0}
    _, body = await ask(dialect, worker, kind, **fields)
    assert text_of(body, kind, stream=stream)[:2] == ("one two", "stop")
    pieces = likely(body, stream=stream)
    if kind is Kind.CHAT:
        texts = [token["token"] for piece in pieces for token in piece["content"]]
    else:
        texts = [text for piece in pieces for text in piece["tokens"]]
    assert texts == ["one", " two"]


@KINDS
async def test_a_number_of_top_tokens_beyond_tgis_limit_is_capped_and_named(
    worker: TgiWorker, dialect: Dialect, kind: Kind
) -> None:
    fields = {"logprobs": True, "top_logprobs": 9} if kind is Kind.CHAT else {"logprobs": 9}
    answer, body = await ask(dialect, worker, kind, **fields)
    name = "top_logprobs" if kind is Kind.CHAT else "logprobs"
    assert answer.headers["x-modelvine-dropped-params"] == name
    [logprobs] = likely(body, stream=False)
    first = logprobs["content"][0] if kind is Kind.CHAT else logprobs
    assert len(first["top_logprobs"] if kind is Kind.CHAT else first["top_logprobs"][0]) == 5


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"best_of": 2}, True),
        ({"best_of": 3}, False),
        ({"best_of": "2"}, False),
        ({"best_of": 2, "n": 2}, False),
        ({"best_of": 2, "stream": True}, False),
        ({"best_of": 2, "temperature": 0}, False),
        ({"best_of": 2, "seed": 7}, False),
    ],
    ids=str,
)
async def test_best_of_is_sent_where_tgi_supports_it(
    worker: TgiWorker, dialect: Dialect, fields: dict[str, Any], heard: bool
) -> None:
    answer, _ = await ask(dialect, worker, Kind.COMPLETION, **fields)
    parameters: Any = worker.asked["parameters"]
    assert parameters.get("best_of") == (2 if heard else None)
    assert answer.headers.get("x-modelvine-dropped-params") == (None if heard else "best_of")


async def test_truncating_a_prompt_is_left_to_tgi_for_completions_and_dropped_for_chats(
    worker: TgiWorker, dialect: Dialect
) -> None:
    answer, _ = await ask(dialect, worker, Kind.COMPLETION, truncate_prompt_tokens=7)
    parameters: Any = worker.asked["parameters"]
    assert parameters["truncate"] == 7
    assert "x-modelvine-dropped-params" not in answer.headers
    answer, _ = await ask(dialect, worker, Kind.CHAT, truncate_prompt_tokens=7)
    assert answer.headers["x-modelvine-dropped-params"] == "truncate_prompt_tokens"
    for wrong in (-1, "7", 1.5, True):
        with pytest.raises(WorkerRejected, match="400"):
            await ask(dialect, worker, Kind.COMPLETION, truncate_prompt_tokens=wrong)


@KINDS
@STREAMS
async def test_log_probabilities_are_returned_only_on_request(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool
) -> None:
    _, body = await ask(dialect, worker, kind, stream=stream)
    assert likely(body, stream=stream) == []


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (
            Kind.COMPLETION,
            {"suffix": "the end", "response_format": {"type": "json_object"}},
            "suffix",
        ),
        (Kind.COMPLETION, {"stream": True, "n": 2}, "n"),
        (Kind.COMPLETION, {"stream": True, "prompt": ["a", "b"]}, "prompt"),
        (Kind.CHAT, {"stream": True, "n": 2}, "n"),
        (Kind.CHAT, {"guided_json": {"type": "object"}}, "guided_json"),
        (Kind.CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (
            Kind.CHAT,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
                ]
            },
            "messages",
        ),
        (
            Kind.CHAT,
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            "messages",
        ),
    ],
)
async def test_a_field_that_would_change_the_kind_of_answer_is_refused_without_asking_the_worker(
    worker: TgiWorker, dialect: Dialect, kind: Kind, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(WorkerUnable) as refused:
        await ask(dialect, worker, kind, **fields)
    assert (refused.value.param, worker.received) == (param, [])


async def test_a_wrong_value_is_refused_with_its_name(worker: TgiWorker, dialect: Dialect) -> None:
    with pytest.raises(WorkerRejected) as refused:
        await ask(dialect, worker, Kind.CHAT, temperature=9)
    error = orjson.loads(refused.value.body)["error"]
    assert (error["code"], error["param"]) == ("invalid_parameter", "temperature")


@STREAMS
async def test_a_tool_call_has_text_arguments_and_an_id_of_its_own(
    worker: TgiWorker, dialect: Dialect, stream: bool
) -> None:
    worker.fail(tool=b'{"name":"look","description":null,"arguments":{"at":"me"}}')
    tool_choice = {"type": "function", "function": {"name": "look"}}
    _, body = await ask(
        dialect, worker, Kind.CHAT, stream=stream, tools=[LOOK], tool_choice=tool_choice
    )
    assert worker.asked["tool_choice"] == {"function": {"name": "look"}}
    assert worker.asked["tools"] == [
        {"type": "function", "function": {"name": "look", "arguments": {"type": "object", "x": 1}}}
    ]
    if stream:
        [first, *_] = [c for c in chunks(body)[1:-1] if "tool_calls" in c["choices"][0]["delta"]]
        [call] = first["choices"][0]["delta"]["tool_calls"]
    else:
        [choice] = orjson.loads(body)["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at":"me"}'}
    assert call["id"].startswith("call_")


async def test_tools_that_may_not_be_called_are_not_offered(
    worker: TgiWorker, dialect: Dialect
) -> None:
    await ask(dialect, worker, Kind.CHAT, tools=[LOOK], tool_choice="none")
    assert "tools" not in worker.asked


@pytest.mark.parametrize("tool", [b"", b'{"name":"notify_error","arguments":{"error":"no"}}'])
async def test_a_required_tool_call_that_is_missing_is_a_failure(
    worker: TgiWorker, dialect: Dialect, tool: bytes
) -> None:
    worker.fail(tool=tool)
    with pytest.raises(WorkerFailed, match="tool"):
        await ask(dialect, worker, Kind.CHAT, tools=[LOOK], tool_choice="required")


async def test_an_optional_tool_call_that_fits_no_tool_becomes_a_text(
    worker: TgiWorker, dialect: Dialect
) -> None:
    worker.fail(tool=b'{"name":"notify_error","arguments":{"error":"none of them fits"}}')
    _, body = await ask(dialect, worker, Kind.CHAT, tools=[LOOK])
    assert text_of(body, Kind.CHAT, stream=False)[:2] == ("none of them fits", "stop")


async def test_images_are_sent_in_the_form_that_tgi_reads(
    worker: TgiWorker, dialect: Dialect
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa", "detail": "low"}}
    message = {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "what?"}, image]}
    await ask(dialect, worker, Kind.CHAT, messages=[message])
    [sent] = worker.asked["messages"]  # type: ignore[misc]
    assert sent["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,aa"},
    }


@KINDS
@STREAMS
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 422}, WorkerRejected),
        ({"status": 424}, WorkerFailed),
        ({"status": 429}, WorkerBusy),
        ({"status": 503, "refusal": b'{"error":"Model is overloaded"}'}, WorkerBusy),
        ({"status": 500}, WorkerFailed),
        ({"status": 404}, NoSuchPath),
        ({"status": 401}, WorkerFailed),
        ({"garbage": True}, WorkerFailed),
        ({"empty": True}, WorkerFailed),
        ({"die_before_headers": True}, WorkerDied),
    ],
    ids=str,
)
async def test_each_failure_before_the_first_byte_has_its_own_error(
    worker: TgiWorker, dialect: Dialect, kind: Kind, stream: bool, faults: dict[str, object], error: type[WorkerError],
) -> None:  # fmt: skip
    worker.fail(**faults)
    with pytest.raises(error) as failed:
        await ask(dialect, worker, kind, stream=stream)
    assert type(failed.value) is error
    match failed.value:
        case WorkerRejected(status=status):
            assert status == 400


@KINDS
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("generation", WorkerFailed),
        ("incomplete_generation", WorkerFailed),
        ("overloaded", WorkerBusy),
        ("validation", WorkerRejected),
        ("<script>", WorkerFailed),
    ],
)
async def test_an_error_as_the_first_event_is_a_failed_attempt(
    worker: TgiWorker, dialect: Dialect, kind: Kind, said: str, error: type[WorkerError]
) -> None:
    worker.fail(error_after=0, error_type=said)
    with pytest.raises(error) as failed:
        await ask(dialect, worker, kind, stream=True)
    assert "<script>" not in str(failed.value)


@KINDS
@pytest.mark.parametrize(
    "faults", [{"error_after": 3}, {"die_after": 3}, {"end_after": 3}], ids=str
)
async def test_a_stream_without_its_end_is_broken(
    worker: TgiWorker, dialect: Dialect, kind: Kind, faults: dict[str, object]
) -> None:
    worker.fail(delay_between=0.01, **faults)
    body = orjson.dumps({"model": "llama", **HELLO, **ONCE, "stream": True})
    request = chat(kind=kind, body=body, stream=True)
    async with dialect.answer(request, own(worker.url)) as answer:
        with pytest.raises(AnswerBroken):
            await whole(answer)
    assert isinstance(answer.broken, AnswerBroken)


async def test_a_stop_string_that_the_router_finds_ends_the_work_of_the_worker(
    worker: TgiWorker, dialect: Dialect
) -> None:
    worker.fail(delay_between=0.05)
    _, body = await ask(dialect, worker, Kind.COMPLETION, stream=True, stop=[*"1234", "there"])
    text, reason, usage = text_of(body, Kind.COMPLETION, stream=True)
    assert (text, reason, usage["estimated"]) == ("Hello ", "stop", True)
    await until(lambda: worker.hung_up == 1)


async def test_a_worker_that_never_answers_times_out(worker: TgiWorker) -> None:
    worker.fail(hang=True)
    async with links(QUICK.model_copy(update={"first_byte_timeout": 0.2})) as hasty:
        with pytest.raises(WorkerTimeout):
            await ask(create(hasty), worker, Kind.COMPLETION, stream=True)


@pytest.mark.parametrize(
    ("status", "lives"), [(200, True), (429, True), (503, False), (502, False)]
)
async def test_only_a_worker_that_is_down_or_behind_a_proxy_without_it_is_not_alive(
    worker: TgiWorker, dialect: Dialect, status: int, lives: bool
) -> None:
    worker.fail(health=status, hang=True)
    assert await dialect.alive(own(worker.url).worker) is lives


async def test_an_address_without_a_worker_is_not_alive(dialect: Dialect) -> None:
    nobody = own("http://127.0.0.1:1").worker
    assert not await dialect.alive(nobody)
    assert await dialect.slots(nobody) == 0


@pytest.mark.parametrize(
    ("info", "slots"),
    [
        (b'{"max_concurrent_requests":128}', 128),
        (b'{"max_concurrent_requests":true}', 0),
        (b'{"max_concurrent_requests":99999999}', 0),
        (b"[1]", 0),
        (b"no JSON", 0),
    ],
)
async def test_slots_are_read_from_the_workers_info(
    worker: TgiWorker, dialect: Dialect, info: bytes, slots: int
) -> None:
    worker.fail(info=info)
    assert await dialect.slots(own(worker.url).worker) == slots


@pytest.mark.parametrize(
    ("read", "output"),
    [
        ({"max_input_tokens": 3072}, 1024),
        ({"max_input_length": 4000}, 96),
        ({}, 0),
        ({"max_input_tokens": 9999}, 0),
    ],
)
async def test_the_description_is_read_from_the_workers_info(
    worker: TgiWorker, dialect: Dialect, read: dict[str, int], output: int
) -> None:
    info = {
        "model_id": "org/m",
        "version": "3.0.1",
        "max_total_tokens": 4096,
        "max_concurrent_requests": 64,
    }
    worker.fail(info=orjson.dumps({**info, **read}))
    description = await dialect.describe(own(worker.url).worker)
    limits = {"max_input_tokens": 4096 - output} if output else {}
    own_words = {"slots": 64, "output": output, "limits": limits}
    assert description == WorkerDescription(
        "TGI 3.0.1", (OfferedModel("org/m", 4096),), **own_words
    )


async def test_a_nonsensical_info_describes_nothing_and_an_absent_worker_is_to_be_described_later(
    worker: TgiWorker, dialect: Dialect
) -> None:
    for info in (b"[1]", b"no JSON", b'{"model_id":5,"version":["x"],"max_total_tokens":-1}'):
        worker.fail(info=info)
        assert await dialect.describe(own(worker.url).worker) == WorkerDescription("TGI")
    assert await dialect.describe(own("http://127.0.0.1:1").worker) is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"token":null}',
        b'{"token":{"text":5}}',
        b'{"choices":[{"delta":null}]}',
        b'{"choices":[5]}',
        b'{"error":{"message":"no"}}',
        b'{"error":null}',
    ],
)
@KINDS
def test_nonsense_in_a_stream_is_a_failure(kind: Kind, said: bytes) -> None:
    body = orjson.dumps({"model": "llama", **HELLO, **ONCE})
    with pytest.raises(WorkerFailed):
        ChoiceReader(read(chat(kind=kind, body=body)), part).feed(said)


@pytest.mark.parametrize(
    "details", [b"5", b"{}", b'{"generated_tokens":-1}', b'{"generated_tokens":"3"}']
)
def test_usage_without_valid_details_is_estimated(details: bytes) -> None:
    request = read(chat(kind=Kind.COMPLETION, body=b'{"model":"m","prompt":"12345678"}'))
    event = b'{"token":{"text":"a","special":false},"generated_text":"a","details":%b}' % details
    *_, usage = ChoiceReader(request, part).feed(event)
    assert usage == Usage(2, 1, estimated=True)


WORDS_OF_TGI = st.sampled_from([
    "token", "text", "special", "details", "generated_text", "generated_tokens", "finish_reason", "input_length", "prefill",
    "choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "error", "error_type", "usage",
    "prompt_tokens", "completion_tokens", "length", "look", "notify_error",
])  # fmt: skip
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | NUMBERS | WORDS_OF_TGI,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS_OF_TGI, inner, max_size=4),
    max_leaves=12,
)
SOMETHING = JSON | st.fixed_dictionaries(
    {"token": st.fixed_dictionaries({"text": WORDS_OF_TGI}), "generated_text": WORDS_OF_TGI,
     "details": st.fixed_dictionaries({"generated_tokens": NUMBERS, "input_length": NUMBERS, "finish_reason": JSON})},
) | st.fixed_dictionaries(
    {"choices": st.tuples(st.fixed_dictionaries(
        {"delta": JSON, "finish_reason": JSON,
         "message": st.fixed_dictionaries({"content": JSON, "tool_calls": JSON})}
    ))},
)  # fmt: skip


@given(SOMETHING, st.sampled_from([Kind.CHAT, Kind.COMPLETION]))
def test_any_message_of_a_worker_is_an_answer_or_a_failure(said: object, kind: Kind) -> None:
    request = read(
        chat(kind=kind, body=orjson.dumps({"model": "m", **HELLO, **ONCE, "tools": [LOOK]}))
    )
    form = TextForm("x", 1, "m", kind)
    body = orjson.dumps(said)
    for tell in (
        ChoiceReader(request, part).feed,
        partial(in_one_piece, request, 0, header=lambda _: "5"),
    ):
        try:
            events = tell(body)
        except WorkerError:
            continue
        written, usage = form.whole_answer(events)
        assert orjson.loads(written)["usage"]["prompt_tokens"] == usage.prompt
        assert 0 <= usage.prompt <= 2**53
        assert 0 <= usage.completion <= 2**53
        assert all(map(form.event, events))


class TestFigures:
    async def test_are_read_from_its_metrics(self, worker: TgiWorker, dialect: Dialect) -> None:
        worker.fail(metrics=b"tgi_queue_size 3\ntgi_batch_current_size 2\nother 1\n")
        assert isinstance(dialect, LoadReporting)
        figures = await dialect.figures(registered(worker))
        assert figures == {Figure.QUEUED: 3, Figure.RUNNING: 2}
        assert worker.probed[-1].path == "/metrics"

    async def test_of_servers_without_metrics_are_none(
        self, worker: TgiWorker, dialect: Dialect
    ) -> None:
        assert isinstance(dialect, LoadReporting)
        assert await dialect.figures(registered(worker)) is None

    async def test_of_a_worker_that_is_away_are_empty(self, dialect: Dialect) -> None:
        assert isinstance(dialect, LoadReporting)
        assert WORKER is not None
        assert await dialect.figures(WORKER) == {}


def registered(server: TgiWorker) -> Worker:
    found = own(server.url).worker
    assert found is not None
    return found


async def ask_for_tokens(
    dialect: Dialect,
    worker: TgiWorker,
    kind: Kind = Kind.TOKENIZE,
    path: str = "",
    **fields: object,
) -> tuple[Answer, bytes]:
    body = orjson.dumps({"model": "llama", **fields})
    async with dialect.answer(chat(kind=kind, body=body), own(worker.url + path)) as answer:
        return answer, await whole(answer)


@pytest.mark.parametrize("name", ["content", "prompt", "input"])
@pytest.mark.parametrize("path", ["", "/tokenize", "/v1/chat/completions"])
async def test_a_text_is_tokenized_under_each_of_its_field_names(
    worker: TgiWorker, dialect: Dialect, name: str, path: str
) -> None:
    answer, body = await ask_for_tokens(dialect, worker, path=path, **{name: "höy"})
    assert orjson.loads(body) == {"tokens": [ord("h"), ord("ö"), ord("y")]}
    assert worker.asked == {"inputs": "höy"}
    assert (answer.status, answer.length, answer.headers) == (200, len(body), {})


async def test_the_texts_of_tokens_have_the_form_of_llama_cpp_or_vllm(
    worker: TgiWorker, dialect: Dialect
) -> None:
    answer, body = await ask_for_tokens(dialect, worker, content="hé", with_pieces=True)
    pieces = [{"id": ord("h"), "piece": "h"}, {"id": ord("é"), "piece": "é"}]
    assert (orjson.loads(body), answer.headers) == ({"tokens": pieces}, {})
    _, body = await ask_for_tokens(dialect, worker, prompt="hé", return_token_strs=True)
    assert orjson.loads(body) == {"tokens": [ord("h"), ord("é")], "token_strs": ["h", "é"]}


async def test_parameters_of_tokens_without_effect_are_named(
    worker: TgiWorker, dialect: Dialect
) -> None:
    answer, _ = await ask_for_tokens(
        dialect, worker, content="a", add_special=False, parse_special=True
    )
    assert answer.headers == {DROPPED: "add_special_tokens, parse_special"}


async def test_fields_that_are_unsupported_or_wrong_are_refused_by_name(
    worker: TgiWorker, dialect: Dialect
) -> None:
    with pytest.raises(WorkerUnable) as unable:
        await ask_for_tokens(
            dialect, worker, content="a", messages=[{"role": "user", "content": "a"}]
        )
    assert unable.value.param == "messages"
    with pytest.raises(WorkerRejected) as refused:
        await ask_for_tokens(dialect, worker, content=7)
    assert orjson.loads(refused.value.body)["error"]["param"] == "content"
    assert worker.received == []


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.CHAT, Kind.COMPLETION, Kind.TOKENIZE}))
async def test_every_other_kind_is_refused_with_its_path(
    worker: TgiWorker, dialect: Dialect, kind: Kind
) -> None:
    with pytest.raises(WorkerUnable, match=f"does not serve /v1/{kind}$"):
        await ask_for_tokens(dialect, worker, kind)
    assert worker.received == []


async def test_a_server_without_a_tokenizer_is_unable_and_has_not_failed(
    worker: TgiWorker, dialect: Dialect
) -> None:
    worker.fail(status=404, refusal=b'{"error":"No fast tokenizer available"}')
    with pytest.raises(WorkerUnable, match="does not serve /v1/tokenize"):
        await ask_for_tokens(dialect, worker, content="a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"id":1}]',
        b'[{"id":-1,"text":""}]',
        b'[{"id":true,"text":""}]',
        b'[{"id":"1","text":""}]',
    ],
)
def test_nonsense_in_place_of_tokens_is_a_failed_attempt(body: bytes) -> None:
    with pytest.raises(WorkerFailed):
        read_token_answer(chat(kind=Kind.TOKENIZE, body=b'{"content":"a"}'), body)
