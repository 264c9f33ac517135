"""Dialect for Llama Stack 0.0.1, the first version of its specification: chats over `/inference`.

The specification has messages with one text and attachments, no stop strings, and no tools except those of agents. It defines
the pieces of a streamed message, but no field that requests streaming. A worker is asked with `stream` and by `Accept`. One
that refuses this is asked again without, and the node streams its answer, which comes in one piece.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

import orjson

from router.canonical.text import TextRequest
from router.dialects import Recognition
from router.errors import WorkerFailed, WorkerUnable
from router.http.probe import send_probe
from router.http.service_call import describe_services, services_of
from router.http.translator import ProtocolMapping, Translator
from router.http.verbatim import PassThrough
from router.openai.body import splice_model
from router.openai.text_parser import answer_object, written_answer
from router.openai.text_writer import Event, Reason, ToolCall
from router.openai.usage import Usage
from router.peers.links import Links
from router.requests import SERVICES, Kind
from router.services.calls import CALLS
from router.translate.request import MappedRequest, refuse_tool_calls, unheard
from router.translate.text import OutputPiece, estimate_usage, in_one_piece
from router.translate.verbatim import LLAMA_STACK
from router.worker_description import WorkerDescription, count_of
from router.workers import Worker

ENDPOINTS: Mapping[str, str] = {
    "POST /inference": "chats, streams too; if the worker does not stream, the node does",
    **{
        f"{call.method} {call.path}".strip(): f"forwarded to a service of type `{SERVICES[call.kinds[0]].shown}`"
        for call in CALLS
        if call.protocol == LLAMA_STACK
    },
}
"""How each endpoint of Llama Stack is handled."""

_LACKING = frozenset({400, 422})
_ROLES: Mapping[str, str] = {"developer": "system"}
_REASONS: Mapping[str, Reason] = {
    "stop": "stop",
    "max-length": "length",
    "safety": "content_filter",
}
_HEARD = ("max_tokens", "temperature", "top_p")
_OF_A_PIECE = frozenset({
    "id", "text", "tokens", "tool_call", "eot", "is_complete", "is_header_complete", "log_probs", "finish_reason", "usage",
})  # fmt: skip
_SUFFIXES: Mapping[str, str] = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}
_MOST_TOKENS = 2**53


class LlamaStackHttp(Translator):
    """Client of the Llama Stack servers of this machine."""

    def __init__(self, links: Links) -> None:
        super().__init__(links, MAPPING)

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a server by its answer to an empty request: an error about missing fields."""
        url = self.url(worker, "inference")
        asked = f"empty POST {url.path}"
        heard = await send_probe(self._places, worker, url, method="POST", body=b"{}")
        if heard.status not in _LACKING or not isinstance(heard.json, dict):
            return Recognition(asked, heard.came, silent=heard.silent)
        services = await services_of(self._links, worker)
        came = f"{heard.status}, it reports missing fields of /inference"
        if services:
            came += f"; and {describe_services(services)}"
        return Recognition(asked, came, WorkerDescription("Llama Stack", services))


def create(links: Links) -> LlamaStackHttp:
    """Create the dialect."""
    return LlamaStackHttp(links)


def mapped(asked: TextRequest, worker: Worker) -> MappedRequest:
    """Translate a chat to Llama Stack; raise `WorkerUnable` if that would change the answer."""
    given = asked.sampling
    options = {
        "max_tokens": given.max_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
    }
    options = {name: value for name, value in options.items() if value is not None}
    body: dict[str, object] = {
        "model": worker.own_model,
        "messages": list(map(_message, asked.messages)),
    }
    if options:
        body["options"] = options
    if asked.n > 1:
        body["n_completions"] = asked.n
    # The pieces of a stream do not say to which candidate they belong.
    streamed = asked.stream and asked.n == 1
    said = {**body, "stream": True} if streamed else body
    return MappedRequest("inference", (said,), unheard(asked, *_HEARD), streamed, body)


def _message(message: Mapping[str, object]) -> dict[str, object]:
    refuse_tool_calls("Llama Stack", message)
    role, content = str(message["role"]), message.get("content")
    said: dict[str, object] = {"role": _ROLES.get(role, role)}
    if isinstance(name := message.get("name"), str):
        said["metadata"] = {"name": name}
    if not isinstance(content, list):
        return said | {"text": content or ""}
    texts: list[str] = []
    attachments: list[dict[str, str]] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                attachments.append(_attachment(url))
            case _:
                raise WorkerUnable("it supports only texts and images", param="messages")
    said["text"] = "\n".join(texts)
    return said | ({"attachments": attachments} if attachments else {})


def _attachment(url: str) -> dict[str, str]:
    """Return an image with its type if its URL tells it."""
    if url.startswith("data:"):
        kind = url[len("data:") :].partition(",")[0].partition(";")[0]
    else:
        path = url.partition("?")[0].partition("#")[0]
        kind = _SUFFIXES.get(path.rpartition(".")[2].lower(), "")
    return {"uri": url, **({"mime-type": kind} if kind else {})}


def part(_: TextRequest, data: bytes) -> OutputPiece:
    """Read one piece of a streamed message."""
    if data == b"[DONE]":
        return OutputPiece(over=True)
    said = _success(data)
    piece = _candidates(said)[0] if "candidates" in said else said
    if not _OF_A_PIECE & set(piece):
        raise WorkerFailed("an event of the worker's stream is not a part of a message")
    read = _message_of(piece, 0)
    return OutputPiece(
        read.text, read.reason, _usage(said), read.calls, over=piece.get("is_complete") is True
    )


def whole(asked: TextRequest, _: int, body: bytes, __: Callable[[str], str]) -> list[Event]:
    """Read a whole answer with all its candidates."""
    said = _success(body)
    candidates = _candidates(said)
    if len(candidates) < asked.n:
        raise WorkerUnable(f"the worker returned {len(candidates)} of {asked.n} texts", param="n")
    told, events = _usage(said), list[Event]()
    for choice, candidate in enumerate(candidates[: asked.n]):
        read = _message_of(candidate, choice)
        spent = told if choice == 0 else Usage(0, 0)
        if told is None:
            guess = estimate_usage(asked, choice, read.text)
            # The prompt is counted once.
            spent = Usage(0 if choice else guess.prompt, guess.completion, estimated=True)
        events += in_one_piece(
            asked, choice, OutputPiece(read.text, read.reason, spent, read.calls)
        )
    return events


def _candidates(said: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    given = said.get("candidates")
    if not isinstance(given, list) or not given or not all(isinstance(c, dict) for c in given):
        raise WorkerFailed("the worker's answer has no candidates")
    return given


def _message_of(said: Mapping[str, object], choice: int) -> OutputPiece:
    text, reason = said.get("text") or "", said.get("finish_reason")
    if not isinstance(text, str):
        raise WorkerFailed("the worker's message has no text")
    ended: Reason | None = None
    if isinstance(reason, str):
        ended = _REASONS.get(reason, "stop")
    elif said.get("eot") is True:
        ended = "stop"
    return OutputPiece(text, ended, calls=_calls(said.get("tool_call"), choice))


def _calls(given: object, choice: int) -> tuple[ToolCall, ...]:
    """Read a call of one of the model's own tools: a request cannot offer any."""
    match given:
        case None:
            return ()
        case {"name": str(name), **rest}:
            pass
        case _:
            raise WorkerFailed("the worker called a tool without a name")
    arguments = rest.get("arguments")
    merged: dict[str, object] = {}
    for named in arguments if isinstance(arguments, list) else [arguments or {}]:
        if not isinstance(named, dict):
            raise WorkerFailed("the arguments of a tool that the worker called have no names")
        merged |= named
    return (ToolCall(f"call_{uuid4().hex}", name, written_answer(merged).decode(), choice),)


def _success(body: bytes) -> Mapping[str, object]:
    said = answer_object(body)
    if said.get("error"):
        raise WorkerFailed("the worker returned an error with a success status")
    return said


def _usage(said: Mapping[str, object]) -> Usage | None:
    match said.get("usage"):
        case {"input_tokens": int(read), "output_tokens": int(written)} if (
            0 <= read <= _MOST_TOKENS and 0 <= written <= _MOST_TOKENS
        ):
            return Usage(int(read), int(written))
    return None


def _addressed(body: bytes, worker: Worker) -> bytes:
    return splice_model(body, worker.own_model)


def _took(asked: bytes, body: bytes, _: Callable[[str], str]) -> Usage | None:
    """Read the usage of an answer that is passed on unchanged; raise a `WorkerError` if it is no valid answer."""
    said = _success(body)
    given, wanted = len(_candidates(said)), count_of(orjson.loads(asked).get("n_completions"))
    if given < wanted:
        raise WorkerUnable(f"the worker returned {given} of {wanted} texts", param="n")
    return _usage(said)


PASSING = PassThrough(calls=frozenset({"inference"}), addressed=_addressed, whole=_took)

MAPPING = ProtocolMapping(
    name="Llama Stack",
    kinds=frozenset({Kind.CHAT}),
    mapped=mapped,
    paths=("inference",),
    part=part,
    whole=whole,
    passing=PASSING,
)
