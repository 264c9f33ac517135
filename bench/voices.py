"""What does a face do for one request and one event? Every face that speaks another protocol, as the node has it."""

from collections.abc import Callable, Iterator, Mapping

import orjson

from node.faces import llama_stack
from node.faces.anthropic import request_mapping as anthropic
from node.faces.anthropic.encoder import Telling
from node.faces.encoder import Voice
from node.faces.grpc.localai.texts import said_in_full
from node.faces.llama_stack.request_mapping import body_of
from node.faces.responses.encoder import Head, ResponsesVoice
from node.faces.responses.request_mapping import read as read_response
from node.faces.tgi import request_mapping as tgi
from node.faces.tgi.encoder import Text
from router.openai import text_parser
from router.openai.body import object_of
from router.openai.result_writers import Delta, Form
from router.requests import Kind
from router.rpc.messages import LOCALAI, message_class, methods_of

MAX_EVENT_BYTES = 1024 * 1024

Run = Callable[[], bytes]
Row = tuple[str, Run, Run]
Fields = Mapping[str, object]


def faces(text: str) -> Iterator[Row]:
    """Return what is measured of each: a request with `text`, and an event with a word."""
    said = {"role": "user", "content": text}
    body = {"model": "m", "stream": True, "temperature": 0.5}
    yield _face(
        "Llama Stack",
        {
            "model": "m",
            "messages": [{"role": "user", "text": text}],
            "options": {"temperature": 0.5},
        },
        lambda given: body_of(given, streams=True),
        llama_stack.Voice("x", "m", streams=True, max_event_bytes=MAX_EVENT_BYTES),
    )
    yield _tgi_face({"inputs": text, "parameters": {"temperature": 0.5, "do_sample": True}})
    yield _anthropic_face({**body, "max_tokens": 99, "messages": [said]})
    yield _responses_face({**body, "input": [said]})
    yield _localai_face(text)


def _face(
    name: str, fields: Fields, say: Callable[[Fields], Fields], voice: Voice, kind: Kind = Kind.CHAT
) -> Row:
    """Have a client ask for a stream over HTTP."""
    body, event = orjson.dumps(fields), _event(kind)
    return f"{name}, face", lambda: orjson.dumps(say(object_of(body))), lambda: voice.stream(event)


def _tgi_face(fields: Fields) -> Row:
    voice = Text(tgi.read(fields), streams=True, listed=False, max_event_bytes=MAX_EVENT_BYTES)
    return _face("TGI", fields, lambda given: tgi.read(given).fields, voice, Kind.COMPLETION)


def _anthropic_face(fields: Fields) -> Row:
    voice = Telling(anthropic.read(fields), "x", "x", max_event_bytes=MAX_EVENT_BYTES)
    return _face("Anthropic", fields, lambda given: anthropic.read(given).fields, voice)


def _responses_face(fields: Fields) -> Row:
    head = Head("x", 1, "m", read_response(fields).repeats, {})
    voice = ResponsesVoice(head, streams=True, max_event_bytes=MAX_EVENT_BYTES)
    return _face("Responses API", fields, lambda given: read_response(given).chat, voice)


def _localai_face(text: str) -> Row:
    """Have LocalAI ask for a stream over gRPC."""
    method, message = methods_of(LOCALAI)["PredictStream"], message_class("backend.Message")
    messages = [message(role="user", content=text)]
    asked = method.asked(UseTokenizerTemplate=True, Messages=messages, Temperature=0.5)
    body, event = asked.SerializeToString(), _event(Kind.CHAT)
    ear = text_parser.Stream(max_event_bytes=MAX_EVENT_BYTES)

    def ask() -> bytes:
        return orjson.dumps(said_in_full(method.asked.FromString(body))[1])

    def hear() -> bytes:
        word = text_parser.text_of(ear.take(event))
        return bytes(method.told(message=word.encode()).SerializeToString())

    return "LocalAI, face", ask, hear


def _event(kind: Kind) -> bytes:
    """Return a word as a worker of OpenAI's protocol says it."""
    return Form("x", 1, "m", kind).event(Delta(" word"))
