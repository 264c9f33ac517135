"""The OpenAI dialect: bytes pass through, model names are the node's, failures come before the first byte."""

import asyncio

import orjson
import pytest
from yarl import URL

from registry.records import Ability
from router.answer import Route
from router.dialects import Dialect
from router.dialects.openai_http import MAX_PROPERTIES_BYTES, create
from router.dialects.openai_http.endpoints import (
    endpoint,
    list_and_properties_urls,
    metrics_of,
    other_endpoint,
)
from router.dialects.openai_http.json_answer import LOOKED_AT_BYTES, parse_success
from router.errors import (
    AnswerBroken,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerStale,
    WorkerTimeout,
    WorkerTooSmall,
    WorkerUnable,
    WorkerUnreachable,
)
from router.openai.usage import Usage
from router.requests import Kind, PassedHeaders, Request
from router.settings import RouterSettings
from router.worker_description import OfferedModel, WorkerDescription
from router.worker_metrics import Figure, LoadReporting
from tests.router.world import MODEL, QUICK, ask, chat, links, own, until, whole
from tests.workers.openai_worker import OpenAIWorker, running
from tests.workers.raw import raw, take


@pytest.mark.parametrize(
    ("api", "kind", "url"),
    [
        ("http://h:1", Kind.CHAT, "http://h:1/v1/chat/completions"),
        ("http://h:1/", Kind.IMAGE_EDIT, "http://h:1/v1/images/edits"),
        ("http://h:1/v1", Kind.EMBEDDING, "http://h:1/v1/embeddings"),
        ("http://h:1/v1/", Kind.COMPLETION, "http://h:1/v1/completions"),
        ("http://h:1/openai/v1", Kind.CHAT, "http://h:1/openai/v1/chat/completions"),
        ("http://h:1/v1/chat/completions", Kind.CHAT, "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/chat/completions", Kind.COMPLETION, "http://h:1/v1/completions"),
        ("http://h:1/v1/chat/completions", Kind.EMBEDDING, "http://h:1/v1/embeddings"),
        ("http://h:1/v1/images/generations", Kind.IMAGE_EDIT, "http://h:1/v1/images/edits"),
        ("http://h:1/x/v1/completions?k=1", Kind.CHAT, "http://h:1/x/v1/chat/completions?k=1"),
        ("http://h:1/generate", Kind.CHAT, "http://h:1/generate"),
        ("http://h:1", Kind.SOUND, "http://h:1/v1/sound-generation"),
        ("http://h:1", Kind.TOKENIZE, "http://h:1/tokenize"),
        ("http://h:1/v1", Kind.TOKENIZE, "http://h:1/tokenize"),
        ("http://h:1/v1/chat/completions", Kind.TOKENIZE, "http://h:1/tokenize"),
        ("http://h:1/v1/tokenize", Kind.TOKENIZE, "http://h:1/v1/tokenize"),
        ("http://h:1/v1/tokenize", Kind.CHAT, "http://h:1/v1/chat/completions"),
        ("http://h:1/tokenize", Kind.CHAT, "http://h:1/v1/chat/completions"),
        ("http://h:1/x/v1", Kind.STORE_FIND, "http://h:1/x/stores/find"),
        ("http://h:1/stores/get", Kind.STORE_SET, "http://h:1/stores/set"),
        ("http://h:1/stores/get", Kind.EMBEDDING, "http://h:1/v1/embeddings"),
    ],
)
def test_an_endpoint_is_derived_from_any_registered_url(api: str, kind: Kind, url: str) -> None:
    assert str(endpoint(api, kind)) == url


async def test_an_answer_is_the_workers_own_bytes(worker: OpenAIWorker, dialect: Dialect) -> None:
    answer, body = await ask(dialect, chat(), own(worker.url))
    assert answer.route is Route.LOCAL
    assert answer.length == len(body) == len(answer.first)
    assert orjson.loads(body)["own_field"] == [1]
    assert orjson.loads(body)["model"] == MODEL


async def test_a_request_arrives_byte_for_byte_with_only_the_headers_that_are_passed_on(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    passed = {"accept": "a/b", "traceparent": "00-1", "authorization": "Bearer k", "cookie": "c=1"}
    body = b'{ "model" : "llama",\n"unknown": [1.0e5], "messages":[]}'
    request = Request(
        "r-7",
        Kind.CHAT,
        MODEL,
        body,
        "application/json; charset=utf-8",
        passed=PassedHeaders(passed),
    )
    await ask(dialect, request, own(worker.url))
    [received] = worker.received
    assert received.body == body
    sent = {name.lower(): value for name, value in received.headers.items()}
    assert sent.pop("host") in worker.url
    assert sent.pop("content-length") == str(len(body))
    assert sent == {
        "content-type": "application/json; charset=utf-8",
        "x-request-id": "r-7",
        "accept": "a/b",
        "traceparent": "00-1",
        "accept-encoding": "identity",
    }


@pytest.mark.parametrize(
    "kind", [Kind.EMBEDDING, Kind.IMAGE, Kind.IMAGE_EDIT, Kind.COMPLETION, Kind.RERANK]
)
async def test_every_kind_goes_to_its_own_path(
    worker: OpenAIWorker, dialect: Dialect, kind: Kind
) -> None:
    await ask(dialect, chat(kind=kind), own(f"{worker.url}/v1/chat/completions"))
    assert worker.received[0].path == f"/v1/{kind.value}"


async def test_the_worker_gets_its_own_name_for_the_model_and_the_caller_the_public_one(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    _, body = await ask(dialect, chat(), own(worker.url, model="weights.gguf"))
    assert worker.received[0].body == chat(model="weights.gguf").body
    assert orjson.loads(body)["model"] == MODEL


async def test_a_project_in_front_of_the_name_is_not_sent(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    await ask(dialect, chat(f"p/{MODEL}"), own(worker.url))
    assert worker.received[0].body == chat().body


async def test_a_form_is_passed_on_with_only_the_model_name_changed(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    form = (
        b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--X\r\n'
        b'Content-Disposition: form-data; name="image"; filename="i"\r\n\r\n\x89PNG\r\n\x00\r\n--X--\r\n'
    )
    request = Request(
        "r", Kind.IMAGE_EDIT, MODEL, form % b"llama", "multipart/form-data; boundary=X"
    )
    await ask(dialect, request, own(worker.url, model="sd"))
    assert worker.received[0].body == form % b"sd"
    assert worker.received[0].headers["Content-Type"] == "multipart/form-data; boundary=X"


async def test_a_body_of_several_megabytes_arrives_complete(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    body = b'{"model":"llama","image":"' + b"a" * 3_000_000 + b'"}'
    await ask(dialect, chat(kind=Kind.IMAGE_EDIT, body=body), own(worker.url))
    assert worker.received[0].body == body


@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("no_done", [False, True])
async def test_a_stream_passes_byte_for_byte_when_the_name_is_right(
    worker: OpenAIWorker, dialect: Dialect, crlf: bool, no_done: bool
) -> None:
    worker.fail(crlf=crlf, no_done=no_done)
    answer, body = await ask(dialect, chat(stream=True), own(worker.url))
    assert answer.streamed
    assert body == b"".join(worker.events(MODEL, usage=True))


@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("name", ["/models/weights.gguf", 'a"quote'])
async def test_a_stream_under_another_name_is_renamed_and_otherwise_untouched(
    worker: OpenAIWorker, dialect: Dialect, crlf: bool, name: str
) -> None:
    worker.fail(crlf=crlf, name=name)
    _, body = await ask(dialect, chat(stream=True), own(worker.url))
    worker.fail(crlf=crlf)
    assert body == b"".join(worker.events(MODEL, usage=True))


async def test_chunks_are_handed_on_as_they_come(worker: OpenAIWorker, dialect: Dialect) -> None:
    for name in (None, "other"):
        worker.fail(delay_between=0.02, name=name)
        async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
            assert answer.first.count(b"data:") == 1
            assert len([chunk async for chunk in answer.rest]) >= 6


@pytest.mark.parametrize("size", [100_000, LOOKED_AT_BYTES - 1000, LOOKED_AT_BYTES + 1000])
async def test_long_answers_pass_and_are_renamed_up_to_the_inspected_size(
    worker: OpenAIWorker, dialect: Dialect, size: int
) -> None:
    worker.fail(pad_bytes=size, name="other")
    answer, body = await ask(dialect, chat(kind=Kind.EMBEDDING), own(worker.url))
    assert answer.length == len(body)
    assert orjson.loads(body)["model"] == (MODEL if size < LOOKED_AT_BYTES else "other")


async def test_audio_passes_through(worker: OpenAIWorker, dialect: Dialect) -> None:
    worker.fail(pad_bytes=200_000)
    answer, body = await ask(dialect, chat(kind=Kind.SPEECH), own(worker.url))
    assert answer.content_type == "audio/wav"
    assert len(body) == answer.length == 201_004


LLAMA_CPP_TAKES_LESS = (
    b'{"error":{"code":500,"message":"input (3001 tokens) is too large to process. increase the physical batch size '
    b'(current batch size: 2048)","type":"server_error"}}'
)
OLLAMA_IS_BUSY = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'


HAPROXY_REACHES_NONE = (
    b"<html><body><h1>503 Service Unavailable</h1>\n"
    b"No server is available to handle this request.\n</body></html>\n"
)


FAILURES: list[tuple[dict[str, object], type[WorkerError]]] = [
    ({"status": 500}, WorkerFailed),
    ({"status": 502}, WorkerFailed),
    ({"status": 503}, WorkerFailed),
    ({"status": 503, "refusal": HAPROXY_REACHES_NONE}, WorkerUnreachable),
    ({"status": 503, "refusal": HAPROXY_REACHES_NONE, "retry_after": "7"}, WorkerBusy),
    ({"status": 301}, WorkerFailed),
    ({"status": 401}, WorkerFailed),
    ({"status": 405}, WorkerFailed),
    ({"status": 409}, WorkerFailed),
    ({"status": 404, "refusal": b"404 page not found"}, WorkerFailed),
    ({"status": 404, "refusal": b'{"error":{"message":"Model x not found"}}'}, WorkerStale),
    ({"status": 429}, WorkerBusy),
    ({"status": 529}, WorkerBusy),
    ({"status": 503, "refusal": OLLAMA_IS_BUSY}, WorkerBusy),
    (
        {"status": 503, "refusal": b'{"error":{"message":"The engine is currently overloaded"}}'},
        WorkerBusy,
    ),
    ({"status": 503, "refusal": b'{"error":"No slot available"}'}, WorkerBusy),
    ({"status": 500, "refusal": OLLAMA_IS_BUSY}, WorkerFailed),
    ({"status": 503, "retry_after": "7"}, WorkerBusy),
    ({"status": 408}, WorkerBusy),
    ({"status": 400}, WorkerRejected),
    ({"status": 413}, WorkerTooSmall),
    ({"status": 500, "refusal": LLAMA_CPP_TAKES_LESS}, WorkerTooSmall),
    (
        {"status": 500, "refusal": b'{"error":{"code":500,"message":"it is too large"}}'},
        WorkerFailed,
    ),
    ({"status": 415}, WorkerRejected),
    ({"status": 422}, WorkerRejected),
    ({"code": 1007}, WorkerFailed),
    ({"error_first": True}, WorkerFailed),
    ({"garbage": True}, WorkerFailed),
    ({"die_before_headers": True}, WorkerDied),
    ({"die_after": 0}, WorkerDied),
]


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_path_that_a_worker_does_not_serve_does_not_count_against_it(
    worker: OpenAIWorker, dialect: Dialect, status: int
) -> None:
    worker.fail(status=status, refusal=b'{"error":{"message":"Not Found"}}')
    with pytest.raises(WorkerUnable, match="does not serve /v1/tokenize") as unable:
        await ask(dialect, chat(kind=Kind.TOKENIZE), own(worker.url))
    assert (unable.value.param, unable.value.blames_worker) == ("model", False)


async def test_tokenizing_tries_both_paths_that_servers_have_for_it(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    body = b'{"model":"llama","content":"hi"}'
    for api in (worker.url, f"{worker.url}/v1/chat/completions"):
        worker.fail(lacks=("/tokenize",))
        answer, _ = await ask(dialect, chat(kind=Kind.TOKENIZE, body=body), own(api))
        assert answer.status == 200
        worker.fail(lacks=("/tokenize", "/v1/tokenize"))
        with pytest.raises(WorkerUnable):
            await ask(dialect, chat(kind=Kind.TOKENIZE, body=body), own(api))
    assert [request.path for request in worker.received] == ["/tokenize", "/v1/tokenize"] * 4


@pytest.mark.parametrize(
    ("api", "url"),
    [
        ("http://h:1", "http://h:1/v1/tokenize"),
        ("http://h:1/x/v1/completions?k=1", "http://h:1/x/v1/tokenize?k=1"),
        ("http://h:1/v1/tokenize", None),
        ("http://h:1/tokenize", None),
        ("http://h:1/generate", None),
    ],
)
def test_the_second_path_for_tokenizing_is_tried_unless_the_registered_url_names_one(
    api: str, url: str | None
) -> None:
    assert other_endpoint(api, Kind.TOKENIZE) == (URL(url) if url else None)
    assert other_endpoint(api, Kind.CHAT) is None


@pytest.mark.parametrize("kind", [Kind.STORE_SET, Kind.STORE_DELETE])
async def test_an_empty_answer_of_a_store_means_success_where_no_data_is_expected(
    worker: OpenAIWorker, dialect: Dialect, kind: Kind
) -> None:
    worker.fail(empty=True)
    answer, body = await ask(dialect, chat(kind=kind), own(worker.url))
    assert (answer.status, answer.content_type, body) == (200, "application/json", b"{}")
    with pytest.raises(WorkerFailed):
        await ask(dialect, chat(kind=Kind.STORE_GET), own(worker.url))


@pytest.mark.parametrize(
    ("said", "arrives"),
    [
        ({"content": "hi", "own": [1]}, {"content": "hi", "prompt": "hi", "own": [1]}),
        ({"prompt": "hi"}, {"content": "hi", "prompt": "hi"}),
        ({"input": "hi"}, {"content": "hi", "prompt": "hi", "input": "hi"}),
        (
            {"content": "hi", "add_special": True},
            {"content": "hi", "prompt": "hi", "add_special": True, "add_special_tokens": True},
        ),
        ({"messages": []}, {"messages": []}),
    ],
)
async def test_a_text_to_tokenize_is_sent_under_every_servers_field_name(
    worker: OpenAIWorker, dialect: Dialect, said: dict[str, object], arrives: dict[str, object]
) -> None:
    body = orjson.dumps({"model": "llama", **said})
    await ask(dialect, chat(kind=Kind.TOKENIZE, body=body), own(worker.url, model="own"))
    [received] = worker.received
    assert received.path == "/tokenize"
    assert orjson.loads(received.body) == {"model": "own", **arrives}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
            {"type": "array"},
        ),
        ({"type": "json_object"}, {"type": "object"}),
    ],
)
async def test_the_schema_of_a_completion_is_sent_under_every_servers_field_name(
    worker: OpenAIWorker, dialect: Dialect, form: dict[str, object], schema: dict[str, object]
) -> None:
    fields = {"model": "llama", "prompt": "a", "response_format": form}
    body = orjson.dumps(fields)
    await ask(dialect, chat(kind=Kind.COMPLETION, body=body), own(worker.url))
    await ask(dialect, chat(kind=Kind.CHAT, body=body), own(worker.url))
    completion, asked_in_a_chat = worker.received
    assert orjson.loads(completion.body) == fields | {"json_schema": schema}
    assert asked_in_a_chat.body == body


@pytest.mark.parametrize("fields", [{"response_format": {"type": "text"}}, {"prompt": "json"}])
async def test_a_completion_without_a_schema_is_sent_unchanged(
    worker: OpenAIWorker, dialect: Dialect, fields: dict[str, object]
) -> None:
    body = orjson.dumps({"model": "llama", **fields})
    await ask(dialect, chat(kind=Kind.COMPLETION, body=body), own(worker.url))
    assert worker.received[0].body == body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("faults", "error"), FAILURES, ids=[str(faults) for faults, _ in FAILURES])
async def test_each_failure_before_the_first_byte_has_its_own_error(
    worker: OpenAIWorker,
    dialect: Dialect,
    faults: dict[str, object],
    error: type[WorkerError],
    stream: bool,
) -> None:
    if faults == {"die_after": 0} and not stream:
        faults = {"die_after": 0, "announce_bytes": 10_000}
    worker.fail(**faults)
    with pytest.raises(error) as failed:
        await ask(dialect, chat(stream=stream), own(worker.url))
    assert type(failed.value) is error
    if isinstance(failed.value, WorkerDied):
        assert failed.value.hung_up
    assert worker.url not in str(failed.value)
    # A refused stream is sent once more without the usage option that the node added.
    again = stream and faults.get("status") in (400, 422)
    assert len(worker.received) == (2 if again else 1)
    assert worker.received[-1].body == chat(stream=stream).body or not again


@pytest.mark.parametrize("faults", [{"empty": True}, {"packed": True}])
async def test_an_empty_or_compressed_answer_is_a_failure(
    worker: OpenAIWorker, dialect: Dialect, faults: dict[str, object]
) -> None:
    worker.fail(**faults)
    with pytest.raises(WorkerFailed):
        await ask(dialect, chat(), own(worker.url))


async def test_a_text_too_long_for_llama_cpp_is_refused_with_its_message(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    worker.fail(status=500, refusal=LLAMA_CPP_TAKES_LESS)
    with pytest.raises(WorkerTooSmall) as refused:
        await ask(dialect, chat(), own(worker.url))
    assert refused.value.elsewhere
    assert not refused.value.blames_worker
    assert refused.value.body.startswith(b"input (3001 tokens) is too large to process. increase")


@pytest.mark.parametrize(
    "said",
    [
        b'{"error":{"message":"out of memory"}}',
        b'{"error":"Request failed during generation","error_type":"generation"}',
        b'{"choices":null,"error":{"message":"Provider returned error","code":502}}',
        b'{"choices":[],"error":"out of memory"}',
        b'{"code":7}',
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_with_a_status_of_success_is_a_failure(
    dialect: Dialect, said: bytes, stream: bool
) -> None:
    kind = b"text/event-stream" if stream else b"application/json"
    body = b"data: %b\n\n" % said if stream else said
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(head % (kind, len(body)) + body)

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await ask(dialect, chat(stream=stream), own(url))


@pytest.mark.parametrize(
    "said",
    [
        b'{"choices":[{}],"error":"none"}',
        b'{"data":[{}],"error":{"message":"none"}}',
        b'{"text":"hi","error":null}',
        b'{"text":"hi","error":""}',
    ],
)
def test_an_answer_that_also_has_a_field_for_errors_is_no_failure(said: bytes) -> None:
    assert parse_success(said) == orjson.loads(said)


async def test_a_code_of_zero_is_success(worker: OpenAIWorker, dialect: Dialect) -> None:
    worker.fail(code=0)
    _, body = await ask(dialect, chat(), own(worker.url))
    assert orjson.loads(body)["code"] == 0


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), ("0.5", 0.5), ("nan", 1), ("-3", 1), ("soon", 1), ("1e9", 3600)]
)
async def test_retry_after_is_read_and_bounded(
    worker: OpenAIWorker, dialect: Dialect, said: str, seconds: float
) -> None:
    worker.fail(status=429, retry_after=said)
    with pytest.raises(WorkerBusy) as busy:
        await ask(dialect, chat(), own(worker.url))
    assert busy.value.retry_after == seconds


async def test_a_refusal_has_the_workers_own_body_up_to_a_limit(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    worker.fail(status=422, refusal=b"x" * 1_000_000)
    with pytest.raises(WorkerRejected) as rejected:
        await ask(dialect, chat(), own(worker.url))
    assert (rejected.value.status, len(rejected.value.body)) == (422, 64 * 1024)


async def test_an_address_without_a_listener_is_unreachable(dialect: Dialect) -> None:
    with pytest.raises(WorkerUnreachable):
        await ask(dialect, chat(), own("http://127.0.0.1:1"))


async def test_each_timeout_is_reported_as_its_own(worker: OpenAIWorker) -> None:
    slow = RouterSettings(
        connect_timeout=0.2, first_byte_timeout=0.2, idle_timeout=0.2, total_timeout=30
    )
    brief = RouterSettings(
        connect_timeout=1, first_byte_timeout=5, idle_timeout=5, total_timeout=0.3
    )
    async with links(slow) as own_links, links(brief) as hurried:
        for faults in ({"hang": True}, {"delay_first": 5}, {"delay_headers": 5}):
            worker.fail(**faults)
            with pytest.raises(WorkerTimeout) as late:
                await ask(create(own_links), chat(stream=True), own(worker.url))
            assert late.value.phase == "first byte"
        for faults in ({"delay_between": 5}, {"stall_after": 4, "delay_between": 0.01}):
            worker.fail(**faults)
            with pytest.raises(AnswerBroken, match="no byte for"):
                await ask(create(own_links), chat(stream=True), own(worker.url))
        worker.fail(delay_between=0.1)
        with pytest.raises(AnswerBroken, match="no end within"):
            await ask(create(hurried), chat(stream=True), own(worker.url))


async def test_a_slow_caller_does_not_trip_the_idle_timeout_of_the_worker(
    worker: OpenAIWorker,
) -> None:
    settings = RouterSettings(first_byte_timeout=5, idle_timeout=0.5, total_timeout=30)
    worker.fail(delay_between=0.01)
    async with (
        links(settings) as own_links,
        create(own_links).answer(chat(stream=True), own(worker.url)) as answer,
    ):
        chunks = [answer.first]
        async for chunk in answer.rest:
            chunks.append(chunk)
            if len(chunks) == 2:
                await asyncio.sleep(1)
    assert b"".join(chunks).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("name", [None, "other"])
async def test_a_worker_that_dies_in_mid_stream_breaks_the_answer(
    worker: OpenAIWorker, dialect: Dialect, name: str | None
) -> None:
    worker.fail(die_after=4, delay_between=0.01, name=name)
    async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
        with pytest.raises(AnswerBroken):
            await whole(answer)
    assert isinstance(answer.broken, AnswerBroken)


async def test_an_answer_beyond_the_size_limit_is_a_failure(worker: OpenAIWorker) -> None:
    settings = QUICK.model_copy(update={"max_answer_bytes": 100_000, "max_event_bytes": 100})
    worker.fail(pad_bytes=200_000)
    async with links(settings) as own_links:
        with pytest.raises(WorkerFailed):
            await ask(create(own_links), chat(kind=Kind.SPEECH), own(worker.url))
        worker.fail(name="other")
        with pytest.raises(WorkerFailed, match="event"):
            await ask(create(own_links), chat(stream=True), own(worker.url))


@pytest.mark.parametrize("faults", [{"hang": True}, {"delay_first": 60}, {"delay_between": 60}])
async def test_cancelling_a_caller_cancels_the_request_at_the_worker(
    worker: OpenAIWorker, dialect: Dialect, faults: dict[str, object]
) -> None:
    worker.fail(**faults)
    caller = asyncio.ensure_future(ask(dialect, chat(stream=True), own(worker.url)))
    await until(lambda: len(worker.received) == 1)
    await asyncio.sleep(0.05)
    caller.cancel()
    await until(lambda: worker.hung_up == 1)
    assert caller.cancelled()


async def test_leaving_an_answer_in_the_middle_cancels_the_request_at_the_worker(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    worker.fail(delay_between=0.05)
    async with dialect.answer(chat(stream=True), own(worker.url)) as answer:
        assert answer.first
        async for _ in answer.rest:
            break
    await until(lambda: worker.hung_up == 1)


async def test_a_worker_that_answers_a_probe_at_all_is_alive() -> None:
    async with running() as worker, links() as own_links:
        assert await create(own_links).alive(own(worker.url).worker)
        worker.fail(hang=True)
        assert await create(own_links).alive(own(f"{worker.url}/v1/chat/completions").worker)
        assert worker.received == []


@pytest.mark.parametrize(
    ("status", "said", "lives"),
    [
        (502, b"<h1>502 Bad Gateway</h1>", False),
        (504, b"", False),
        (503, HAPROXY_REACHES_NONE, False),
        (503, b'{"error":{"message":"Loading model"}}', True),
        (500, b"", True),
    ],
)
async def test_a_worker_is_not_alive_where_a_proxy_answers_in_its_place(
    status: int, said: bytes, lives: bool
) -> None:
    async with running() as worker, links() as own_links:
        worker.fail(status=status, refusal=said)
        assert await create(own_links).alive(own(worker.url).worker) is lives


async def test_a_worker_that_is_silent_or_absent_is_not_alive() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with raw(say_nothing) as url, links() as own_links:
        assert not await create(own_links).alive(own(url).worker)
        assert not await create(own_links).alive(own("http://127.0.0.1:1").worker)


TEXT_STREAM = chat(stream=True)


@pytest.mark.parametrize("size", [0, 100_000])
async def test_a_whole_answer_has_its_usage(
    worker: OpenAIWorker, dialect: Dialect, size: int
) -> None:
    worker.fail(pad_bytes=size)
    answer, _ = await ask(dialect, chat(kind=Kind.EMBEDDING), own(worker.url))
    assert answer.usage == Usage(1, 0)


async def test_comments_in_a_stream_are_no_first_byte() -> None:
    async def murmur(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while not writer.is_closing():
            writer.write(b": PROCESSING\n\n")
            await asyncio.sleep(0.02)

    hasty = QUICK.model_copy(update={"first_byte_timeout": 0.3})
    async with raw(murmur) as url, links(hasty) as own_links:
        with pytest.raises(WorkerTimeout) as late:
            await ask(create(own_links), TEXT_STREAM, own(url))
    assert late.value.phase == "first byte"


@pytest.mark.parametrize(
    ("said", "slots"),
    [
        (b'{"total_slots":4,"chat_template":"..."}', 4),
        (b'{"total_slots":0}', 0),
        (b'{"total_slots":true}', 0),
        (b'{"total_slots":"4"}', 0),
        (b'{"total_slots":99999999}', 0),
        (b'{"slots":4}', 0),
        (b"[4]", 0),
        (b"no JSON", 0),
        (b'{"total_slots":4,"pad":"' + b"x" * 2 * MAX_PROPERTIES_BYTES + b'"}', 0),
        (b"", 0),
    ],
)
async def test_slots_are_read_from_llama_cpps_properties(said: bytes, slots: int) -> None:
    async with running() as worker, links() as own_links:
        worker.fail(properties=said)
        for api in (worker.url, f"{worker.url}/v1"):
            assert await create(own_links).slots(own(api).worker) == slots


async def test_a_worker_that_does_not_answer_has_unknown_slots() -> None:
    async def never(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw(never) as url, links() as own_links:
        assert await create(own_links).slots(own(url).worker) == 0
        assert await create(own_links).slots(own("http://127.0.0.1:1").worker) == 0


LISTING = b'{"data":[{"id":"llama","owned_by":"vllm","max_model_len":4096},{"id":"lora"}]}'
PROPERTIES = (
    b'{"total_slots":4,"default_generation_settings":{"n_ctx":512},"modalities":{"vision":false}}'
)


async def test_a_worker_lists_its_models_and_llama_cpp_its_properties_too() -> None:
    async with links() as own_links, running() as worker:
        registered = own(f"{worker.url}/v1/chat/completions").worker
        worker.fail(listing=LISTING)
        description = await create(own_links).describe(registered)
        assert description == WorkerDescription(
            "vLLM", (OfferedModel("llama", 4096), OfferedModel("lora"))
        )
        worker.fail(listing=b'{"data":[{"id":"x"}]}', properties=PROPERTIES)
        description = await create(own_links).describe(registered)
        assert description == WorkerDescription(
            "llama.cpp", (OfferedModel("x", 512, Ability.TEXT_IN | Ability.TEXT_OUT),), slots=4
        )
        assert {probe.path for probe in worker.probed} == {"/v1/models", "/props"}


@pytest.mark.parametrize("listing", [b"", b"[]", b"<html>", b'{"data":5}', b"[" * 100_000])
async def test_an_answer_that_is_no_model_list_describes_nothing(listing: bytes) -> None:
    async with links() as own_links, running() as worker:
        worker.fail(listing=listing)
        assert await create(own_links).describe(own(worker.url).worker) == WorkerDescription()
        worker.fail(status=401)
        assert await create(own_links).describe(own(worker.url).worker) == WorkerDescription()


async def test_a_worker_that_is_loading_or_silent_is_to_be_described_later() -> None:
    async def never(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with links() as own_links, running() as worker, raw(never) as silent:
        for api in (silent, "http://127.0.0.1:1"):
            assert await create(own_links).describe(own(api).worker) is None
        for status in (502, 503, 504):
            worker.fail(status=status)
            assert await create(own_links).describe(own(worker.url).worker) is None
            assert (await create(own_links).recognise(own(worker.url).worker)).waits


@pytest.mark.parametrize(
    ("api", "models", "properties"),
    [
        ("http://w:1", "/v1/models", "/props"),
        ("http://w:1/v1", "/v1/models", "/props"),
        ("http://w:1/v1/chat/completions", "/v1/models", "/props"),
        ("http://w:1/deploy/v1/embeddings?k=1", "/deploy/v1/models?k=1", "/deploy/props?k=1"),
        ("http://w:1/my/own?k=1", "/v1/models?k=1", "/props?k=1"),
    ],
)
def test_the_urls_of_descriptions_are_derived_from_the_registered_url(
    api: str, models: str, properties: str
) -> None:
    assert [url.path_qs for url in list_and_properties_urls(api)] == [models, properties]


class TestFigures:
    @pytest.mark.parametrize(
        ("said", "told"),
        [
            (b"llamacpp:requests_deferred 2\nllamacpp:requests_processing 1\n", (2, 1)),
            (
                b'vllm:num_requests_waiting{engine="0"} 3.0\nvllm:num_requests_running{engine="0"} 4.0\n'
                b'vllm:num_requests_waiting{engine="1"} 1.0\n',
                (4, 4),
            ),
            (b"sglang:num_queue_reqs 5\nsglang:num_running_reqs 6\n", (5, 6)),
        ],
        ids=["llama.cpp", "vllm", "sglang"],
    )
    async def test_are_read_from_the_metrics_of_servers_that_have_them(
        self, worker: OpenAIWorker, dialect: Dialect, said: bytes, told: tuple[int, int]
    ) -> None:
        worker.fail(metrics=b"# HELP x\n" + said + b"other 7\n")
        figures = await told_by(dialect, worker.url)
        assert figures == {Figure.QUEUED: told[0], Figure.RUNNING: told[1]}
        assert worker.probed[-1].path == "/metrics"

    @pytest.mark.parametrize("metrics", [b"", b"other 7\n", b"<html>"])
    async def test_of_servers_without_metrics_are_none(
        self, worker: OpenAIWorker, dialect: Dialect, metrics: bytes
    ) -> None:
        worker.fail(metrics=metrics)
        assert await told_by(dialect, worker.url) is None

    async def test_of_a_worker_that_is_away_are_empty(self, dialect: Dialect) -> None:
        assert await told_by(dialect, "http://127.0.0.1:1") == {}

    def test_are_at_a_path_beside_the_version(self) -> None:
        for api in ("http://h:1", "http://h:1/v1", "http://h:1/v1/chat/completions"):
            assert metrics_of(api) == URL("http://h:1/metrics")
        assert metrics_of("http://h:1/openai/v1") == URL("http://h:1/openai/metrics")


async def told_by(dialect: Dialect, url: str) -> object:
    found = own(url).worker
    assert found is not None
    assert isinstance(dialect, LoadReporting)
    return await dialect.figures(found)
