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
        f"{call.method} {call.path}".strip(): f"forwarded to a service of type `{SERVICES[call.kinds[0]].cli_name}`"
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
        question = f"empty POST {url.path}"
        result = await send_probe(self._pools, worker, url, method="POST", body=b"{}")
        if result.status not in _LACKING or not isinstance(result.json, dict):
            return Recognition(question, result.summary, silent=result.silent)
        services = await services_of(self._links, worker)
        finding = f"{result.status}, it reports missing fields of /inference"
        if services:
            finding += f"; and {describe_services(services)}"
        return Recognition(question, finding, WorkerDescription("Llama Stack", services))


def create(links: Links) -> LlamaStackHttp:
    """Create the dialect."""
    return LlamaStackHttp(links)


def mapped(request: TextRequest, worker: Worker) -> MappedRequest:
    """Translate a chat to Llama Stack; raise `WorkerUnable` if that would change the answer."""
    sampling = request.sampling
    options = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    options = {name: value for name, value in options.items() if value is not None}
    body: dict[str, object] = {
        "model": worker.own_model,
        "messages": list(map(_message, request.messages)),
    }
    if options:
        body["options"] = options
    if request.n > 1:
        body["n_completions"] = request.n
    # The pieces of a stream do not say to which candidate they belong.
    streamed = request.stream and request.n == 1
    payload = {**body, "stream": True} if streamed else body
    return MappedRequest("inference", (payload,), unheard(request, *_HEARD), streamed, body)


def _message(message: Mapping[str, object]) -> dict[str, object]:
    refuse_tool_calls("Llama Stack", message)
    role, content = str(message["role"]), message.get("content")
    payload: dict[str, object] = {"role": _ROLES.get(role, role)}
    if isinstance(name := message.get("name"), str):
        payload["metadata"] = {"name": name}
    if not isinstance(content, list):
        return payload | {"text": content or ""}
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
    payload["text"] = "\n".join(texts)
    return payload | ({"attachments": attachments} if attachments else {})


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
    answer = _success(data)
    piece = _candidates(answer)[0] if "candidates" in answer else answer
    if not _OF_A_PIECE & set(piece):
        raise WorkerFailed("an event of the worker's stream is not a part of a message")
    read = _message_of(piece, 0)
    return OutputPiece(
        read.text, read.reason, _usage(answer), read.calls, over=piece.get("is_complete") is True
    )


def whole(request: TextRequest, _: int, body: bytes, __: Callable[[str], str]) -> list[Event]:
    """Read a whole answer with all its candidates."""
    answer = _success(body)
    candidates = _candidates(answer)
    if len(candidates) < request.n:
        raise WorkerUnable(f"the worker returned {len(candidates)} of {request.n} texts", param="n")
    reported, events = _usage(answer), list[Event]()
    for choice, candidate in enumerate(candidates[: request.n]):
        read = _message_of(candidate, choice)
        usage = reported if choice == 0 else Usage(0, 0)
        if reported is None:
            guess = estimate_usage(request, choice, read.text)
            # The prompt is counted once.
            usage = Usage(0 if choice else guess.prompt, guess.completion, estimated=True)
        events += in_one_piece(
            request, choice, OutputPiece(read.text, read.reason, usage, read.calls)
        )
    return events


def _candidates(answer: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    rows = answer.get("candidates")
    if not isinstance(rows, list) or not rows or not all(isinstance(c, dict) for c in rows):
        raise WorkerFailed("the worker's answer has no candidates")
    return rows


def _message_of(message: Mapping[str, object], choice: int) -> OutputPiece:
    text, reason = message.get("text") or "", message.get("finish_reason")
    if not isinstance(text, str):
        raise WorkerFailed("the worker's message has no text")
    ended: Reason | None = None
    if isinstance(reason, str):
        ended = _REASONS.get(reason, "stop")
    elif message.get("eot") is True:
        ended = "stop"
    return OutputPiece(text, ended, calls=_calls(message.get("tool_call"), choice))


def _calls(value: object, choice: int) -> tuple[ToolCall, ...]:
    """Read a call of one of the model's own tools: a request cannot offer any."""
    match value:
        case None:
            return ()
        case {"name": str(name), **rest}:
            pass
        case _:
            raise WorkerFailed("the worker called a tool without a name")
    arguments = rest.get("arguments")
    merged: dict[str, object] = {}
    for piece in arguments if isinstance(arguments, list) else [arguments or {}]:
        if not isinstance(piece, dict):
            raise WorkerFailed("the arguments of a tool that the worker called have no names")
        merged |= piece
    return (ToolCall(f"call_{uuid4().hex}", name, written_answer(merged).decode(), choice),)


def _success(body: bytes) -> Mapping[str, object]:
    answer = answer_object(body)
    if answer.get("error"):
        raise WorkerFailed("the worker returned an error with a success status")
    return answer


def _usage(answer: Mapping[str, object]) -> Usage | None:
    match answer.get("usage"):
        case {"input_tokens": int(read), "output_tokens": int(written)} if (
            0 <= read <= _MOST_TOKENS and 0 <= written <= _MOST_TOKENS
        ):
            return Usage(int(read), int(written))
    return None


def _addressed(body: bytes, worker: Worker) -> bytes:
    return splice_model(body, worker.own_model)


def _took(request: bytes, body: bytes, _: Callable[[str], str]) -> Usage | None:
    """Read the usage of an answer that is passed on unchanged; raise a `WorkerError` if it is no valid answer."""
    answer = _success(body)
    count, wanted = len(_candidates(answer)), count_of(orjson.loads(request).get("n_completions"))
    if count < wanted:
        raise WorkerUnable(f"the worker returned {count} of {wanted} texts", param="n")
    return _usage(answer)


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
