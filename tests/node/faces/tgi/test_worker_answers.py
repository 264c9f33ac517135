"""Answers of a TGI server behind a node, generated from its specification: with required fields only, with all, with nulls.

An answer that the specification allows never gives a client an error, nor counts as a failure of the worker.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web

from node.faces.errors import TABLE
from router import errors
from tests.node.faces.assembly import told
from tests.node.faces.tgi.schema import DEFINITIONS, check

JSON, EVENTS = "application/json", "text/event-stream"
STYLES = ("least", "null", "full", "strange")
"""Required fields only; optional fields as null; with a value; and with unknown fields besides."""

REASONS = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}
SAID = 'Ünder "generated_text":"x" \n</s>'
PIECES = ("", "Ünder ", '"generated_text":"x"', " \n</s>")
VALUES = {"role": "assistant", "type": "function", "finish_reason": "eos_token"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
USAGE = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def make(name: str, style: str, /, **fields: Any) -> Any:
    """Make an answer of a type, in which some fields are `fields`; check it against the specification."""
    made = _value(DEFINITIONS[name], style, "")
    answer = made | fields if isinstance(made, dict) else made
    check(name, answer)
    return answer


def _value(schema: Mapping[str, Any], style: str, name: str) -> Any:
    match schema:
        case {"$ref": ref}:
            return _value(DEFINITIONS[ref.rpartition("/")[2]], style, name)
        case {"anyOf": [some, _]}:
            return None if style in ("least", "null") else _value(some, style, name)
        case {"oneOf": [first, *_]} | {"enum": [first, *_]}:
            return _value(first, style, name) if isinstance(first, dict) else first
        case {"type": "array", "items": items}:
            return [_value(items, style, name)] * 2 if style in ("full", "strange") else []
        case {"type": "object"}:
            return _object(schema, style)
    return {"string": VALUES.get(name, name), "number": -0.5, "boolean": False}.get(
        schema.get("type", ""), 3
    )


def _object(schema: Mapping[str, Any], style: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, subschema in schema["properties"].items():
        needed = name in schema["required"]
        if needed or style in ("full", "strange") or (style == "null" and "anyOf" in subschema):
            fields[name] = _value(subschema, style, name)
    return {"later": {"x": [None]}, **fields, "": 0} if style == "strange" else fields


def tokens_of(style: str) -> list[dict[str, Any]]:
    """Return the events of a native stream without its end; the special token is no part of the text."""
    quiet = {"details": None, "generated_text": None} if style in ("full", "strange") else {}
    texts = [*((text, False) for text in PIECES), ("</s>", True)]
    return [
        make("StreamResponse", style, token=make("Token", style, text=text, special=special))
        | quiet
        for text, special in texts
    ]


def native(style: str, reason: str, *, ends: str = "both") -> list[Any]:
    """Return the events of a native stream, whose last has the whole `text`, `details` or `both`."""
    *before, last = tokens_of(style)
    ending: dict[str, Any] = {}
    if ends != "details":
        ending["generated_text"] = SAID
    if ends != "text":
        ending["details"] = make("StreamDetails", style, finish_reason=reason, generated_tokens=6)
    return [*before, last | ending]


def chat_chunks(style: str, reason: str) -> list[Any]:
    quiet = {} if style == "least" else {"finish_reason": None}
    choices = [
        make("ChatCompletionChoice", style, delta=make("TextMessage", style, content=text)) | quiet
        for text in PIECES
    ]
    end = make("ChatCompletionChoice", style, delta=make("TextMessage", style, content=""))
    choices.append(end | {"finish_reason": reason})
    return [make("ChatCompletionChunk", style, choices=[choice]) for choice in choices]


def text_chunks(style: str, reason: str) -> list[Any]:
    pieces = [(text, "") for text in PIECES] + [("", reason)]
    return [
        make("Chunk", style, choices=[make("CompletionComplete", style, text=t, finish_reason=r)])
        for t, r in pieces
    ]


def chat(style: str, **choice: Any) -> Any:
    message = make("TextMessage", style, content=SAID)
    made = make("ChatCompletionComplete", style, **{"message": message, **choice})
    return make("ChatCompletion", style, choices=[made], usage=make("Usage", style, **USAGE))


def text(style: str, reason: str) -> Any:
    choice = make("CompletionComplete", style, text=SAID, finish_reason=reason)
    return make("CompletionFinal", style, choices=[choice], usage=make("Usage", style, **USAGE))


def generated(style: str, reason: str) -> Any:
    details = make("Details", style, finish_reason=reason, generated_tokens=6)
    return make("GenerateResponse", style, generated_text=SAID, details=details)


def written(event: object) -> bytes:
    return b"data:" + orjson.dumps(event) + b"\n\n"


def _lines(event: object) -> bytes:
    lines = orjson.dumps(event, option=orjson.OPT_INDENT_2).split(b"\n")
    return b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


SPELLINGS: Mapping[str, Callable[[object], bytes]] = {
    "no blank": written,
    "a blank": lambda event: b"data: " + orjson.dumps(event) + b"\n\n",
    "crlf": lambda event: b"data: " + orjson.dumps(event) + b"\r\n\r\n",
    "cr": lambda event: b"data: " + orjson.dumps(event) + b"\r\r",
    "named": lambda event: b"event: message\nid: 1\nretry: 9\n" + written(event),
    "kept alive": lambda event: b":\n\n: still here\n\ndata:\n\n" + written(event) + b"\n\n\n",
    "wide": lambda event: (
        b"data: " + orjson.dumps(event).replace(b'text":', b'text" \t:  ') + b"\n\n"
    ),
    "many lines": _lines,
}
"""Ways in which an event stream may write an event."""


@dataclass
class Tgi:
    """Server that gives the test's answer on each path: status, content type, body in pieces."""

    url: str = ""
    answers: dict[str, tuple[int, str, Sequence[bytes]]] = field(default_factory=dict)

    def says(self, path: str, payload: object, *, status: int = 200) -> None:
        self.answers[path] = (status, JSON, [orjson.dumps(payload)])

    def streams(self, path: str, *pieces: bytes, status: int = 200) -> None:
        self.answers[path] = (status, EVENTS, pieces)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        await http.read()
        status, kind, pieces = self.answers.get(http.path, (404, JSON, [b"{}"]))
        response = web.StreamResponse(status=status, headers={"Content-Type": kind})
        await response.prepare(http)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response


@asynccontextmanager
async def _running() -> AsyncIterator[Tgi]:
    tgi, app = Tgi(), web.Application()
    app.router.add_route("*", "/{path:.*}", tgi.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    tgi.url = f"tgi+http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield tgi
    finally:
        await runner.cleanup()


@pytest.fixture
async def tgi():
    async with _running() as tgi:
        yield tgi


@pytest.fixture
async def http(alone, tgi):
    await alone.register(tgi)
    yield alone.http
    _, body = await told(alone.http.get("/api/v1/route?model=tiny"))
    # No request counted as a failure of the worker.
    assert body["candidates"][0]["circuit"]["failures"] == 0


async def asked(http, path, **fields):
    status, payload = await told(http.post(path, json={"model": "tiny", **fields}))
    assert status == 200, payload
    return payload


async def events(http, path, **fields):
    sent = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, **fields}
    async with http.post(path, json=sent) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (200, EVENTS), text
    found = []
    for event in text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
        lines = [one[5:].removeprefix(" ") for one in event.split("\n") if one[:5] == "data:"]
        if any(lines) and lines != ["[DONE]"]:
            found.append(orjson.loads("\n".join(lines)))
    assert not [one for one in found if "error" in one], found
    return found


def spoken(chunks, text_of):
    """Return text, reason and usage of a stream in OpenAI's form."""
    choices = [choice for event in chunks for choice in event["choices"]]
    ended = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    usage = [event["usage"] for event in chunks if event.get("usage")]
    return "".join(map(text_of, choices)), ended, usage[-1] if usage else None


def of_chat(choice):
    return choice["delta"].get("content") or ""


def of_text(choice):
    return choice["text"]


@pytest.mark.parametrize("style", STYLES)
class TestOpenAi:
    """Answers of a TGI worker to OpenAI's clients."""

    async def test_a_completion_keeps_text_reason_and_usage(self, http, tgi, style):
        for reason, expected in REASONS.items():
            tgi.says("/generate", generated(style, reason))
            for more in ({}, {"logprobs": 2}):
                payload = await asked(http, "/v1/completions", prompt="Once upon", **more)
                (choice,) = payload["choices"]
                assert (choice["text"], choice["finish_reason"]) == (SAID, expected)
                assert payload["usage"]["completion_tokens"] == 6
                # Two prefill tokens, where they are reported.
                assert style not in ("full", "strange") or payload["usage"]["prompt_tokens"] == 2

    async def test_a_streamed_completion_keeps_text_reason_and_usage(self, http, tgi, style):
        for reason, expected in REASONS.items():
            for ends in ("both", "details"):
                tgi.streams("/generate_stream", *map(written, native(style, reason, ends=ends)))
                for more in ({}, {"logprobs": 2}):
                    chunks = await events(http, "/v1/completions", prompt="Once upon", **more)
                    text, ended, usage = spoken(chunks, of_text)
                    assert (text, ended) == (SAID, [expected])
                    assert usage["completion_tokens"] == 6

    async def test_a_completion_with_a_suffix_keeps_text_reason_and_usage(self, http, tgi, style):
        for reason, expected in REASONS.items():
            asking = {"prompt": "Once", "suffix": "end"}
            tgi.says("/v1/completions", text(style, reason))
            payload = await asked(http, "/v1/completions", **asking)
            (choice,) = payload["choices"]
            assert (choice["text"], choice["finish_reason"]) == (SAID, expected)
            assert payload["usage"] == USAGE
            tgi.streams("/v1/completions", *map(written, text_chunks(style, reason)))
            streamed = spoken(await events(http, "/v1/completions", **asking), of_text)
            assert streamed[:2] == (SAID, [expected])

    async def test_a_chat_keeps_text_reason_and_usage(self, http, tgi, style):
        for reason, expected in REASONS.items():
            tgi.says("/v1/chat/completions", chat(style, finish_reason=reason))
            for more in ({}, {"logprobs": True, "top_logprobs": 2}):
                payload = await asked(http, "/v1/chat/completions", **CHAT, **more)
                (choice,) = payload["choices"]
                assert choice["message"]["content"] == SAID
                assert (choice["finish_reason"], payload["usage"]) == (expected, USAGE)

    async def test_a_streamed_chat_keeps_text_and_reason(self, http, tgi, style):
        for reason, expected in REASONS.items():
            for done in ([], [b"data: [DONE]\n\n"]):
                chunks = map(written, chat_chunks(style, reason))
                tgi.streams("/v1/chat/completions", *chunks, *done)
                for more in ({}, {"logprobs": True, "top_logprobs": 2}):
                    found = await events(http, "/v1/chat/completions", **CHAT, **more)
                    assert spoken(found, of_chat)[:2] == (SAID, [expected])


ARGUMENTS = {
    "an object": ({"city": "Rome"}, {"city": "Rome"}),
    "a text": ('{"city":"Rome"}', {"city": "Rome"}),
    "an empty object": ({}, {}),
    "null": (None, {}),
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
async def test_tool_calls_keep_their_names_and_arguments(http, tgi, arguments):
    for style in STYLES:
        await calls(http, tgi, style, *ARGUMENTS[arguments])


async def calls(http, tgi, style, arguments, expected):
    function = make("FunctionDefinition", style, name="look", arguments=arguments)
    call = make("ToolCall", style, function=function)
    message = make("ToolCallMessage", style, tool_calls=[call])
    for more in ({}, {"content": None}):
        tgi.says("/v1/chat/completions", chat(style, message=message | more))
        asking = {**CHAT, "tools": [LOOK]}
        payload = await asked(http, "/v1/chat/completions", **asking)
        (choice,) = payload["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (called,) = choice["message"]["tool_calls"]
        assert called["function"]["name"] == "look"
        assert orjson.loads(called["function"]["arguments"]) == expected
        chunks = await events(http, "/v1/chat/completions", **asking)
        assert spoken(chunks, of_chat)[1] == ["tool_calls"]
        payload = await asked(http, "/tgi/p/tiny/v1/chat/completions", **asking)
        check("ChatCompletion", payload)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("cut", [False, True])
async def test_each_spelling_of_an_event_stream_is_read(http, tgi, spelling, cut):
    def wire(data):
        body = b"".join(map(SPELLINGS[spelling], data))
        return [body[start : start + 7] for start in range(0, len(body), 7)] if cut else [body]

    tgi.streams("/generate_stream", *wire(native("full", "length")))
    streamed = spoken(await events(http, "/v1/completions", prompt="a"), of_text)
    assert streamed[:2] == (SAID, ["length"])
    assert streamed[2]["completion_tokens"] == 6
    chunks = await events(http, "/tgi/p/tiny/generate_stream", inputs="a")
    assert chunks == native("full", "length")
    for path in ("/v1/chat/completions", "/tgi/p/tiny/v1/chat/completions"):
        tgi.streams("/v1/chat/completions", *wire(chat_chunks("full", "length")))
        streamed = spoken(await events(http, path, **CHAT), of_chat)
        assert streamed[:2] == (SAID, ["length"])


@pytest.mark.parametrize("style", STYLES)
class TestTgi:
    """Answers of a TGI worker to TGI's own clients."""

    async def test_texts_pass_unchanged(self, http, tgi, style):
        for reason in REASONS:
            answer = generated(style, reason)
            tgi.says("/generate", answer)
            assert await asked(http, "/tgi/p/tiny/generate", inputs="a") == answer
            assert await asked(http, "/tgi/p/tiny", inputs="a") == [answer]

    async def test_streams_pass_unchanged(self, http, tgi, style):
        for ends in ("both", "details", "text"):
            sent = native(style, "stop_sequence", ends=ends)
            for done in ([], [b"data: [DONE]\n\n"]):
                tgi.streams("/generate_stream", *map(written, sent), *done)
                for path in ("/tgi/p/tiny/generate_stream", "/tgi/p/tiny"):
                    assert await events(http, path, inputs="a") == sent

    async def test_chats_match_tgis_specification(self, http, tgi, style):
        for reason, expected in REASONS.items():
            path = "/tgi/p/tiny/v1/chat/completions"
            tgi.says("/v1/chat/completions", chat(style, finish_reason=reason))
            payload = await asked(http, path, **CHAT)
            check("ChatCompletion", payload)
            assert payload["choices"][0]["message"]["content"] == SAID
            tgi.streams("/v1/chat/completions", *map(written, chat_chunks(style, reason)))
            chunks = await events(http, path, **CHAT)
            for chunk in chunks:
                check("ChatCompletionChunk", chunk)
            assert spoken(chunks, of_chat)[:2] == (SAID, [expected])

    async def test_completions_match_tgis_specification(self, http, tgi, style):
        tgi.says("/generate", generated(style, "length"))
        payload = await asked(http, "/tgi/p/tiny/v1/completions", prompt="a")
        check("CompletionFinal", payload)
        assert (payload["choices"][0]["text"], payload["choices"][0]["finish_reason"]) == (
            SAID,
            "length",
        )

    async def test_tokens_match_tgis_specification(self, http, tgi, style):
        for pieces in ((), ("Once", " upon"), ("", "Once", " upon", "")):
            tokens = [make("SimpleToken", style, id=n, text=text) for n, text in enumerate(pieces)]
            tgi.says("/tokenize", tokens)
            payload = await asked(http, "/v1/tokenize", content="Once upon")
            assert payload["tokens"] == [*range(len(pieces))]
            if pieces:
                payload = await asked(http, "/tgi/p/tiny/tokenize", inputs="Once upon")
                check("TokenizeResponse", payload)
                assert "".join(token["text"] for token in payload) == "Once upon"

    async def test_info_matches_tgis_specification(self, alone, tgi, style):
        tgi.says("/info", make("Info", style, max_total_tokens=64, max_input_tokens=60))
        await alone.register(tgi)
        async with asyncio.timeout(20):
            status, payload = await told(alone.http.get("/tgi/p/tiny/info"))
            # A busy worker may be asked again after its registration.
            while not payload["max_total_tokens"]:
                await asyncio.sleep(0.02)
                status, payload = await told(alone.http.get("/tgi/p/tiny/info"))
        check("Info", payload)
        assert (status, payload["max_total_tokens"], payload["max_input_tokens"]) == (200, 64, 60)

    async def test_texts_without_details_are_answers(self, http, tgi, style):
        for more in ({}, {"details": None}):
            tgi.says("/generate", {"generated_text": "", **more})
            payload = await asked(http, "/v1/completions", prompt="Once upon")
            assert (payload["choices"][0]["text"], payload["choices"][0]["finish_reason"]) == (
                "",
                "stop",
            )
            assert payload["usage"]["prompt_tokens"] > 0
            payload = await asked(http, "/tgi/p/tiny/generate", inputs="a")
            assert payload == {"generated_text": "", **more}


FAILURES = {
    (422, "validation"): errors.WorkerRejected,
    (422, "tool_error"): errors.WorkerRejected,
    (422, "template_error"): errors.WorkerRejected,
    (424, "generation"): errors.WorkerFailed,
    (429, "overloaded"): errors.WorkerBusy,
    (500, "incomplete_generation"): errors.WorkerIncomplete,
}
"""The errors that the specification names, and what each means."""


@pytest.mark.parametrize("style", ["least", "strange"])
@pytest.mark.parametrize("said_as", ["json", "events", "event of a stream"])
@pytest.mark.parametrize(("status", "kind"), FAILURES)
async def test_each_error_of_the_specification_has_its_meaning(
    alone, tgi, style, said_as, status, kind
):
    await alone.register(tgi)
    answer = make("ErrorResponse", style, error="no such luck", error_type=kind)
    row = TABLE[FAILURES[status, kind]]
    paths = ("/generate_stream", "/v1/chat/completions", "/v1/completions")
    for path in paths:
        if said_as == "json":
            tgi.says(path, answer, status=status)
        else:
            tgi.streams(path, written(answer), status=status if said_as == "events" else 200)
    asking = ({"prompt": "a"}, CHAT, {"prompt": "a", "suffix": "b"})
    for fields in asking:
        path = "/v1/chat/completions" if fields is CHAT else "/v1/completions"
        body = {"model": "tiny", "stream": True, **fields}
        code, payload = await told(alone.http.post(path, json=body))
        if status == 422:
            assert 400 <= code <= 422
            assert payload["error"]["message"] == "no such luck"
        else:
            assert (code, payload["error"]["code"]) == (row.status, row.reason)
    native_ = alone.http.post("/tgi/p/tiny/generate_stream", json={"inputs": "a"})
    code, payload = await told(native_)
    check("ErrorResponse", payload)
    expected = {"tool_error": "validation", "template_error": "validation"}.get(kind, kind)
    assert (code, payload["error_type"]) == (status, expected)
    if status == 422:
        assert "no such luck" in payload["error"]
        assert "data:" not in payload["error"]
