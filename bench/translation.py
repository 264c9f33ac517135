"""CPU time of translation between protocols: of one request, and of one event of a stream, without sockets.

usage: python -m bench.translation

A dialect speaks a worker's protocol on the worker's node; a face speaks a client's protocol on the node that the client calls.
OpenAI's clients and workers cost almost none of it: their bytes are passed on. A request has 2 KB of text.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from node.faces import llama_stack
from node.faces.anthropic import request_mapping as anthropic
from node.faces.anthropic.encoder import AnthropicEvents
from node.faces.encoder import Encoder
from node.faces.grpc.localai.texts import request_in_openai_form
from node.faces.llama_stack.request_mapping import body_of
from node.faces.responses.encoder import Head, ResponsesEncoder
from node.faces.responses.request_mapping import read as read_response
from node.faces.tgi import request_mapping as tgi
from node.faces.tgi.encoder import Text
from registry.records import Service
from router.canonical.text import read
from router.dialects import llama_stack_http, localai_grpc, remotellm_grpc, tgi_http
from router.dialects.localai_grpc import reply_parser
from router.dialects.localai_grpc.verbatim import without_operator_fields
from router.dialects.openai_http.endpoints import with_all_field_names
from router.dialects.tgi_http.answer_parser import PASSING
from router.http.translator import ProtocolMapping
from router.http.verbatim import Ending
from router.openai import text_parser
from router.openai.body import parse_json_object
from router.openai.sse import Splitter
from router.openai.text_writer import Delta, TextForm
from router.openai.usage import StreamUsage
from router.requests import Kind, Request
from router.rpc import messages as framing
from router.rpc.messages import LOCALAI, REMOTELLM, message_class, methods_of, parse_message
from router.translate.request import RequestMapping
from router.translate.text import ChoiceReader
from router.workers import Worker

MAX_EVENT_BYTES = 1024 * 1024

Run = Callable[[], bytes]
Row = tuple[str, Run, Run | None]
"""Name of a translation, its run for a request, and its run for an event, if events are read."""

Fields = Mapping[str, object]


def faces(text: str) -> Iterator[Row]:
    """Yield the measurements of the faces: each a request with `text`, and an event with a word."""
    message = {"role": "user", "content": text}
    body = {"model": "m", "stream": True, "temperature": 0.5}
    yield _face(
        "Llama Stack",
        {
            "model": "m",
            "messages": [{"role": "user", "text": text}],
            "options": {"temperature": 0.5},
        },
        lambda given: body_of(given, streams=True),
        llama_stack.StackEncoder("x", "m", streams=True, max_event_bytes=MAX_EVENT_BYTES),
    )
    yield _tgi_face({"inputs": text, "parameters": {"temperature": 0.5, "do_sample": True}})
    yield _anthropic_face({**body, "max_tokens": 99, "messages": [message]})
    yield _responses_face({**body, "input": [message]})
    yield _localai_face(text)


def _face(
    name: str,
    fields: Fields,
    say: Callable[[Fields], Fields],
    encoder: Encoder,
    kind: Kind = Kind.CHAT,
) -> Row:
    """Return the measurement of a client that requests a stream over HTTP."""
    body, event = orjson.dumps(fields), _event(kind)
    return (
        f"{name}, face",
        lambda: orjson.dumps(say(parse_json_object(body))),
        lambda: encoder.encode_events(event),
    )


def _tgi_face(fields: Fields) -> Row:
    encoder = Text(tgi.read(fields), streams=True, listed=False, max_event_bytes=MAX_EVENT_BYTES)
    return _face("TGI", fields, lambda given: tgi.read(given).fields, encoder, Kind.COMPLETION)


def _anthropic_face(fields: Fields) -> Row:
    encoder = AnthropicEvents(anthropic.read(fields), "x", "x", max_event_bytes=MAX_EVENT_BYTES)
    return _face("Anthropic", fields, lambda given: anthropic.read(given).fields, encoder)


def _responses_face(fields: Fields) -> Row:
    head = Head("x", 1, "m", read_response(fields).repeats, {})
    encoder = ResponsesEncoder(head, streams=True, max_event_bytes=MAX_EVENT_BYTES)
    return _face("Responses API", fields, lambda given: read_response(given).chat, encoder)


def _localai_face(text: str) -> Row:
    """Return the measurement of LocalAI's client that requests a stream over gRPC."""
    method, message = methods_of(LOCALAI)["PredictStream"], message_class("backend.Message")
    messages = [message(role="user", content=text)]
    request = method.request_class(UseTokenizerTemplate=True, Messages=messages, Temperature=0.5)
    body, event = request.SerializeToString(), _event(Kind.CHAT)
    ear = text_parser.TextStreamParser(max_event_bytes=MAX_EVENT_BYTES)

    def ask() -> bytes:
        return orjson.dumps(request_in_openai_form(method.request_class.FromString(body))[1])

    def hear() -> bytes:
        text = text_parser.text_of(ear.feed(event))
        return bytes(method.reply_class(message=text.encode()).SerializeToString())

    return "LocalAI, face", ask, hear


def _event(kind: Kind) -> bytes:
    """Return the event of a word in OpenAI's protocol."""
    return TextForm("x", 1, "m", kind).event(Delta(" word"))


ROUNDS = 5

_WORKER = Worker(Service("p", "m"), "http://127.0.0.1:1")
_TEXT = "x" * 2_000
_ASKED: Mapping[Kind, Mapping[str, object]] = {
    Kind.CHAT: {"messages": [{"role": "user", "content": _TEXT}]},
    Kind.COMPLETION: {"prompt": _TEXT},
}
_CHUNK = {"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}
_PIECE = {"id": "m", "text": " word", "is_complete": False}
_TOKEN = {
    "index": 1,
    "token": {"id": 5, "text": " word", "logprob": -0.5, "special": False},
    "generated_text": None,
    "details": None,
}


def rows() -> Iterator[Row]:
    """Yield all measurements."""
    yield openai_dialect()
    chunk = {"id": "", "created": 1, "model": "own", "choices": [_CHUNK]}
    yield dialect(tgi_http.MAPPING, Kind.CHAT, chunk)
    yield dialect(tgi_http.MAPPING, Kind.COMPLETION, _TOKEN)
    yield dialect(llama_stack_http.MAPPING, Kind.CHAT, _PIECE)
    yield localai_dialect(Kind.CHAT)
    yield localai_dialect(Kind.COMPLETION)
    yield remotellm_dialect()
    yield tgi_both_sides()
    yield localai_both_sides()
    yield from faces(_TEXT)


def openai_dialect() -> Row:
    """Return the measurement of OpenAI's dialect, which only checks whether the worker understands the request's fields."""
    request = request_of(Kind.CHAT)
    return "OpenAI, dialect", lambda: with_all_field_names(request), None


def dialect(mapping: ProtocolMapping, kind: Kind, payload: object) -> Row:
    """Return the measurement of a dialect over HTTP, for a stream."""
    request = request_of(kind)
    event = b"data:" + orjson.dumps(payload) + b"\n\n"
    reader, form = ChoiceReader(read(request), mapping.part), TextForm("x", 1, "m", kind)
    splitter = Splitter(max_event_bytes=len(event))

    def ask() -> bytes:
        return orjson.dumps(mapping.read(request, _WORKER)[1].bodies[0])

    def hear() -> bytes:
        [parsed] = splitter.feed(event)
        return b"".join(map(form.event, reader.feed(parsed.data)))

    return f"{mapping.name}, dialect, {_plural(kind)}", ask, hear


def localai_dialect(kind: Kind) -> Row:
    """Return the measurement of LocalAI's dialect, for a stream."""
    mapping, method = localai_grpc.MAPPING, methods_of(LOCALAI)["PredictStream"]
    request = request_of(kind)
    parsed, mapped = mapping.read(request, _WORKER)
    reply = method.reply_class(message=b" word", tokens=1).SerializeToString()
    reader = ChoiceReader(parsed, reply_parser.ReplyTexts(parsed, 0, mapped.bodies[0]).read)
    form = TextForm("x", 1, "m", kind)

    def hear() -> bytes:
        return b"".join(map(form.event, reader.feed(method.reply_class.FromString(reply))))

    return (
        f"{mapping.name}, dialect, {_plural(kind)}",
        _message(mapping, request, method.request_class),
        hear,
    )


def remotellm_dialect() -> Row:
    """Return the measurement of RemoteLLM's dialect, whose answers come in one piece."""
    mapping, method = remotellm_grpc.MAPPING, methods_of(REMOTELLM)["Generate"]
    ask = _message(mapping, request_of(Kind.COMPLETION), method.request_class)
    return f"{mapping.name}, dialect, {_plural(Kind.COMPLETION)}", ask, None


def tgi_both_sides() -> Row:
    """Return the measurement of TGI's requests passed on to a TGI worker, and its events passed on to the caller."""
    body = orjson.dumps({"inputs": _TEXT, "parameters": {"temperature": 0.5}})
    event = b"data:" + orjson.dumps(_TOKEN) + b"\n\n"
    streamed = PASSING.streamed
    assert streamed is not None
    ending, tokens = (
        Ending(streamed.over),
        StreamUsage(hidden=False, usage_format=streamed.usage_format(body)),
    )

    def hear() -> bytes:
        ending.feed(event)
        return tokens.inspect(event)

    return "TGI, passed on, completions", lambda: PASSING.addressed(body, _WORKER), hear


def localai_both_sides() -> Row:
    """Return the measurement of LocalAI's messages passed on: parsed and serialised by gRPC at both ends, events between."""
    method = methods_of(LOCALAI)["PredictStream"]
    request = method.request_class(Prompt=_TEXT, Temperature=0.5).SerializeToString()
    reply = method.reply_class(message=b" word", tokens=1)
    splitter = Splitter(max_event_bytes=1_000)

    def ask() -> bytes:
        return bytes(without_operator_fields(request).SerializeToString())

    def hear() -> bytes:
        [event] = splitter.feed(framing.message_event(reply.SerializeToString()))
        message = framing.read_event(event.data)
        assert isinstance(message, bytes)
        return bytes(parse_message(method.reply_class, message).SerializeToString())

    return "LocalAI, passed on at both ends, completions", ask, hear


def request_of(kind: Kind) -> Request:
    """Return a request for a stream in OpenAI's form."""
    sampling = {"stream": True, "temperature": 0.5, "stop": ["END"]}
    body = orjson.dumps({"model": "m", **_ASKED[kind], **sampling})
    return Request("r", kind, "m", body, "application/json", stream=True)


def microseconds(run: Callable[[], object], times: int) -> float:
    """Return the CPU time of one run: the minimum of several rounds, since other load only adds to it."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            run()
        rounds.append((time.process_time() - began) / times * 1e6)
    return min(rounds)


def main() -> None:
    """Print a line for each measurement."""
    for name, ask, hear in rows():
        event = f"{microseconds(hear, 20_000):.1f} µs for an event" if hear else "no event is read"
        print(f"{name}: {microseconds(ask, 2_000):.1f} µs for a request, {event}")


def _message(mapping: RequestMapping, request: Request, kind: Any) -> Run:
    def ask() -> bytes:
        body = mapping.read(request, _WORKER)[1].bodies[0]
        return bytes(kind(**body).SerializeToString())

    return ask


def _plural(kind: Kind) -> str:
    return "chats" if kind is Kind.CHAT else "completions"


if __name__ == "__main__":
    main()
