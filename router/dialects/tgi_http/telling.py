"""What does TGI tell? Its answers and stream events, as events of one kind; its failures, as errors of an attempt."""

from collections.abc import Mapping
from uuid import uuid4

import orjson

from router.canonical import Asked
from router.errors import WorkerBusy, WorkerError, WorkerFailed, WorkerRejected
from router.fitness import USUAL_BYTES
from router.rendering import Delta, End, Event, Reason, ToolCall
from router.requests import Kind
from router.stops import Stops
from router.usage import Usage, told

_MOST_TOKENS = 2**53
_REASONS: Mapping[str, Reason] = {"length": "length", "tool_calls": "tool_calls"}


class Stream:
    """One stream, event by event; `ended` says that its choice is complete, and nothing more is worth reading."""

    __slots__ = ("_asked", "_echo", "_reason", "_spent", "_stops", "_tokens", "ended")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._echo = asked.prompts[0] if asked.echo else ""
        self._stops = Stops(asked.stop)
        self._reason: Reason | None = None
        self._spent: Usage | None = None
        self._tokens = 0
        self.ended = False

    def take(self, data: bytes) -> list[Event]:
        """Take in what one event says; raise a `WorkerError` when it says a failure, or nonsense."""
        if data == b"[DONE]":
            return self._end(self._reason or "stop")
        said = object_of(data)
        if "error" in said:
            raise failure(said)
        self._spent = told(said) or self._spent
        chat = self._asked.kind is Kind.CHAT
        text, reason = _of_chunk(said) if chat else _of_token(said)
        self._tokens += bool(text)
        shown = self._stops.take(text)
        shown, self._echo = self._echo + shown, ""
        events: list[Event] = [Delta(shown)] if shown else []
        if not chat:
            self._spent = _of_details(self._asked, 0, said.get("details"), "") or self._spent
        if self._stops.hit:
            return events + self._end("stop")
        if reason is not None:
            self._reason = reason
            # A chat may still tell its usage.
            return events if chat else events + self._end(reason)
        return events

    def finish(self) -> list[Event]:
        """Take in that the stream is over; return nothing when it never said why."""
        return self._end(self._reason) if self._reason and not self.ended else []

    def _end(self, reason: Reason) -> list[Event]:
        if self.ended:
            return []
        self.ended = True
        held = self._stops.rest()
        estimate = Usage(read_by(self._asked, 0), self._tokens, estimated=True)
        rest: list[Event] = [Delta(held)] if held else []
        return [*rest, End(reason), self._spent or estimate]


def whole(asked: Asked, choice: int, body: bytes, prompt_tokens: str) -> list[Event]:
    """Return what an answer in one piece says of one choice; `prompt_tokens` is the header of that name."""
    said = object_of(body)
    if "error" in said:
        raise failure(said)
    if asked.kind is Kind.CHAT:
        return _chat(asked, choice, said)
    match said:
        case {"generated_text": str(text)}:
            details = said.get("details")
            reason = details.get("finish_reason") if isinstance(details, dict) else None
            spent = _of_details(asked, choice, details, prompt_tokens)
            return _cut(asked, choice, text, _reason(reason), spent)
    raise WorkerFailed("the worker's answer has no text")


def failure(said: Mapping[str, object]) -> WorkerError:
    """Say what an error of TGI's means for an attempt."""
    match said.get("error_type"):
        case "overloaded":
            return WorkerBusy("the worker is full")
        case "validation" | "tool_error" | "template_error":
            return WorkerRejected(400, orjson.dumps({"error": str(said.get("error"))}))
        case kind:
            return WorkerFailed(f"the worker failed: {kind if kind in _KNOWN else 'no reason'}")


_KNOWN = ("generation", "incomplete_generation", "healthcheck", "unhealthy")


def object_of(body: bytes) -> Mapping[str, object]:
    """Return a JSON object; raise `WorkerFailed` for anything else."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the worker's answer calls itself JSON and is not") from error
    if not isinstance(said, dict):
        raise WorkerFailed("the worker's answer is no JSON object")
    return said


def read_by(asked: Asked, choice: int) -> int:
    """Estimate how many tokens of one choice were read: whoever counts them needs the model's tokenizer."""
    if asked.kind is not Kind.CHAT:
        return -(-len(asked.prompts[choice // asked.n].encode()) // USUAL_BYTES)
    return -(-len(orjson.dumps(asked.messages)) // USUAL_BYTES)


def _reason(said: object) -> Reason:
    return _REASONS.get(said, "stop") if isinstance(said, str) else "stop"


def _of_token(said: Mapping[str, object]) -> tuple[str, Reason | None]:
    match said:
        case {"token": {"text": str(text), **rest}}:
            details = said.get("details")
            ended = isinstance(details, dict) or isinstance(said.get("generated_text"), str)
            reason = details.get("finish_reason") if isinstance(details, dict) else None
            shown = "" if rest.get("special") is True else text
            return shown, _reason(reason) if ended else None
    raise WorkerFailed("an event of the worker's stream has no token")


def _of_chunk(said: Mapping[str, object]) -> tuple[str, Reason | None]:
    match said.get("choices"):
        case [{"delta": dict(delta), **rest}, *_]:
            text, reason = delta.get("content"), rest.get("finish_reason")
            ended = _reason(reason) if reason else None
            return (text if isinstance(text, str) else ""), ended
        case []:
            return "", None
    raise WorkerFailed("an event of the worker's stream has no choice")


def _of_details(asked: Asked, choice: int, details: object, prompt_tokens: str) -> Usage | None:
    """Return the usage that the details of a text tell; of the prompt newer servers and a header of old ones do."""
    match details:
        case {"generated_tokens": int(written), **rest} if 0 <= written <= _MOST_TOKENS:
            pass
        case _:
            return None
    match rest.get("input_length"), rest.get("prefill"):
        case int(read), _ if 0 <= read <= _MOST_TOKENS:
            return Usage(read, written)
        case _, [*prefill] if prefill:
            return Usage(len(prefill), written)
    if prompt_tokens.isascii() and prompt_tokens.isdigit() and len(prompt_tokens) < 16:
        return Usage(int(prompt_tokens), written)
    return Usage(read_by(asked, choice), written, estimated=True)


def _chat(asked: Asked, choice: int, said: Mapping[str, object]) -> list[Event]:
    match said.get("choices"):
        case [{"message": dict(message), **rest}, *_]:
            pass
        case _:
            raise WorkerFailed("the worker's answer has no message")
    spent = told(said)
    text = _notice(message) or message.get("content")
    calls = [] if _notice(message) else _calls(asked, choice, message.get("tool_calls"))
    if calls:
        return [*calls, End("tool_calls", choice), spent or _estimate(asked, choice, 0)]
    if asked.tool_choice in ("required", "named"):
        raise WorkerFailed("the worker called no tool")
    reason = _reason(rest.get("finish_reason"))
    return _cut(asked, choice, text if isinstance(text, str) else "", reason, spent)


def _notice(message: Mapping[str, object]) -> str:
    """Return why the model called none of the tools: TGI offers it one more, by which it says so."""
    match message.get("tool_calls"):
        case [{"function": {"name": "notify_error", "arguments": {"error": str(why)}}}]:
            return why
    return ""


def _calls(asked: Asked, choice: int, given: object) -> list[Event]:
    calls: list[Event] = []
    names = {tool["name"] for tool in asked.tools}
    for call in given if isinstance(given, list) else []:
        match call:
            case {"function": {"name": str(name), "arguments": arguments}} if name in names:
                # All of its calls have the id 0, and their arguments may be an object.
                text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
                calls.append(ToolCall(f"call_{uuid4().hex}", name, text, choice))
            case _:
                raise WorkerFailed("the worker called a tool that it was not offered")
    return calls


def _cut(asked: Asked, choice: int, text: str, reason: Reason, spent: Usage | None) -> list[Event]:
    stops = Stops(asked.stop)
    echo = asked.prompts[choice // asked.n] if asked.echo else ""
    shown = echo + stops.take(text) + stops.rest()
    reason = "stop" if stops.hit else reason
    events: list[Event] = [Delta(shown, choice), End(reason, choice)]
    return [*events, spent or _estimate(asked, choice, len(text.encode()))]


def _estimate(asked: Asked, choice: int, size: int) -> Usage:
    return Usage(read_by(asked, choice), -(-size // USUAL_BYTES), estimated=True)
