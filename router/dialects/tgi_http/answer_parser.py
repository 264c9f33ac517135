"""Parser for TGI's answers and stream events, as events of one kind, and for its failures, as errors of an attempt.

It also translates tokenizing: TGI tokenizes a text as it does before generating, with the tokens that frame a text.

Where TGI's own answers are passed on unchanged, it observes failures, the end of a text and its usage.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest
from uuid import uuid4

import orjson

from router.canonical import tokenize
from router.canonical.text import TextRequest
from router.canonical.tokenize import SHAPING, WITH_PIECES, WITH_STRINGS
from router.canonical.values import dropped_names
from router.dialects.tgi_http import request_mapping
from router.errors import (
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerIncomplete,
    WorkerRejected,
)
from router.http.verbatim import PassThrough, Streamed
from router.openai import logprobs
from router.openai.logprobs import MAX_LIKELIEST, Token
from router.openai.result_writer import write_token_texts, write_tokens
from router.openai.text_parser import answer_object, written_answer
from router.openai.text_writer import Event, Reason, ToolCall
from router.openai.usage import Usage, UsageFormat, parse_object, read_usage
from router.requests import Kind, Request
from router.select.fitness import estimated_tokens
from router.translate.request import MappedRequest, read_or_reject, refuse_unread_fields
from router.translate.text import OutputPiece, estimate_prompt_tokens, in_one_piece
from router.workers import Worker

TOKENIZE_PATH = "tokenize"

_TEXTS = frozenset({WITH_PIECES, WITH_STRINGS})
_MOST_TOKEN = 2**32 - 1


def map_token_request(request: Request) -> MappedRequest:
    """Translate a request for tokens; raise `WorkerUnable`, or `WorkerRejected` for a wrong value."""
    parsed = read_or_reject(tokenize.read, request)
    refuse_unread_fields("TGI", parsed, SHAPING - _TEXTS)
    unheard = ["add_special_tokens"] if parsed.special is False else []
    unheard += [name for name in dropped_names(parsed) if name not in _TEXTS]
    return MappedRequest(TOKENIZE_PATH, ({"inputs": parsed.text},), tuple(unheard))


def read_token_answer(request: Request, body: bytes) -> bytes:
    """Return TGI's tokens as OpenAI's JSON; raise `WorkerFailed` for an invalid answer."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the worker's answer is not valid JSON") from error
    if not isinstance(answer, list):
        raise WorkerFailed("the worker's answer is not a list of tokens")
    tokens = [_token_and_place(token) for token in answer]
    numbers = [number for number, _ in tokens]
    parsed = tokenize.read(request)
    if parsed.texts:
        return write_token_texts(parsed, numbers, [text for _, text in tokens])
    return write_tokens(numbers)


def _token_and_place(token: object) -> tuple[int, str]:
    match token:
        case {"id": int(number), "text": str(text)}:
            if not isinstance(number, bool) and 0 <= number <= _MOST_TOKEN:
                return number, text
    raise WorkerFailed("the worker's answer contains an invalid token")


# The last event has the whole text, or details with the reason, or both; until then they are null.
_OVER = re.compile(
    rb'"(?:(?:generated_text|finish_reason)"[ \t\r\n]{0,16}:[ \t\r\n]{0,16}"|error_type")'
)


def _addressed(body: bytes, _: Worker) -> bytes:
    # The body names no model: a server has only one.
    return body


def _event(data: bytes) -> None:
    read_token(_success(data))


def _whole(request_body: bytes, body: bytes, header: Callable[[str], str]) -> Usage | None:
    answer = _success(body)
    if not isinstance(answer.get("generated_text"), str):
        raise WorkerFailed("the worker's answer has no text")
    return usage_in_details(
        answer.get("details"), header("x-prompt-tokens"), partial(_read, request_body)
    )


def _usage_format(request_body: bytes) -> UsageFormat:
    def read(data: bytes) -> Usage | None:
        return usage_in_details(parse_object(data).get("details"), "", partial(_read, request_body))

    return UsageFormat(b'"generated_tokens"', read)


def _success(body: bytes) -> Mapping[str, object]:
    answer = answer_object(body)
    if "error" in answer:
        raise failure(answer)
    return answer


def _read(request_body: bytes) -> int:
    """Estimate how many tokens the prompt had."""
    inputs = orjson.loads(request_body).get("inputs")
    return estimated_tokens(len(inputs.encode())) if isinstance(inputs, str) else 0


PASSING = PassThrough(
    calls=frozenset({request_mapping.WHOLE, request_mapping.STREAM}),
    addressed=_addressed,
    whole=_whole,
    streamed=Streamed(event=_event, over=_OVER, usage_format=_usage_format),
)


_MOST_TOKENS = 2**53
_REASONS: Mapping[str, Reason] = {"length": "length", "tool_calls": "tool_calls"}


def part(request: TextRequest, data: bytes) -> OutputPiece:
    """Read one event of a stream; raise a `WorkerError` if it is a failure or invalid."""
    if data == b"[DONE]":
        return OutputPiece(over=True)
    answer = answer_object(data)
    if "error" in answer:
        raise failure(answer)
    if "choices" in answer:
        text, reason, likely = _of_chunk(answer)
        # A later event may still report the usage.
        return OutputPiece(text, reason, read_usage(answer), tokens=_likely(request, likely))
    if request.kind is Kind.CHAT:
        raise WorkerFailed("an event of the worker's stream has no choice")
    text, reason = read_token(answer)
    usage = usage_in_details(
        answer.get("details"), "", lambda: estimate_prompt_tokens(request, 0)
    ) or read_usage(answer)
    tokens = _tokens(request, [answer.get("token")], [answer.get("top_tokens")])
    return OutputPiece(text, reason, usage, over=reason is not None, tokens=tokens)


def whole(
    request: TextRequest, choice: int, body: bytes, header: Callable[[str], str]
) -> list[Event]:
    """Read an answer in one piece, which has one choice."""
    answer = answer_object(body)
    if "error" in answer:
        raise failure(answer)
    if request.kind is Kind.CHAT:
        return in_one_piece(request, choice, _chat(request, choice, answer))
    match answer:
        case {"choices": [{"text": str(text), **ending}, *_]}:
            ended = _reason(ending.get("finish_reason"))
            return in_one_piece(request, choice, OutputPiece(text, ended, read_usage(answer)))
        case {"generated_text": str(text)}:
            details = answer.get("details")
            fields = details if isinstance(details, dict) else {}
            told_by = header("x-prompt-tokens")
            usage = usage_in_details(
                details, told_by, lambda: estimate_prompt_tokens(request, choice)
            )
            tokens = _tokens(request, fields.get("tokens"), fields.get("top_tokens"))
            ended = _reason(fields.get("finish_reason"))
            return in_one_piece(request, choice, OutputPiece(text, ended, usage, tokens=tokens))
    raise WorkerFailed("the worker's answer has no text")


def failure(answer: Mapping[str, object]) -> WorkerError:
    """Return the error of an attempt that corresponds to an error of TGI's."""
    match answer.get("error_type"):
        case "overloaded":
            return WorkerBusy("the worker is full")
        case "validation" | "tool_error" | "template_error":
            return WorkerRejected(400, orjson.dumps({"error": str(answer.get("error"))}))
        case "incomplete_generation":
            return WorkerIncomplete()
        case kind:
            return WorkerFailed(f"the worker failed: {kind if kind in _KNOWN else 'no reason'}")


_KNOWN = ("generation", "healthcheck", "unhealthy")


def _reason(value: object) -> Reason:
    return _REASONS.get(value, "stop") if isinstance(value, str) else "stop"


def read_token(answer: Mapping[str, object]) -> tuple[str, Reason | None]:
    """Return the visible text of a stream's token, and the finish reason if the text ends there; raise `WorkerFailed`."""
    match answer:
        case {"token": {"text": str(text), **rest}}:
            details = answer.get("details")
            ended = isinstance(details, dict) or isinstance(answer.get("generated_text"), str)
            reason = details.get("finish_reason") if isinstance(details, dict) else None
            shown = "" if rest.get("special") is True else text
            return shown, _reason(reason) if ended else None
    raise WorkerFailed("an event of the worker's stream has no token")


def _tokens(request: TextRequest, value: object, likeliest: object) -> tuple[Token, ...]:
    """Read the visible tokens of a text, each with the likeliest ones at its position; skip what is no token."""
    if request.logprobs is None:
        return ()
    tokens = value if isinstance(value, list) else []
    alternatives = likeliest if isinstance(likeliest, list) else []
    visible = []
    for token, beside in zip_longest(tokens, alternatives[: len(tokens)]):
        if (drawn := _token(token)) is not None:
            likely = filter(None, map(_token, beside if isinstance(beside, list) else ()))
            visible.append(replace(drawn, likeliest=tuple(islice(likely, MAX_LIKELIEST))))
    return tuple(visible)


def _token(value: object) -> Token | None:
    match value:
        case {"text": str(text), **rest} if rest.get("special") is not True:
            return logprobs.token(text, rest.get("logprob"), rest.get("id"))
    return None


def _likely(request: TextRequest, value: object) -> tuple[Token, ...]:
    return () if request.logprobs is None else logprobs.read(value)


def _of_chunk(answer: Mapping[str, object]) -> tuple[str, Reason | None, object]:
    """Return the text, finish reason and `logprobs` of an event."""
    match answer.get("choices"):
        case [{"delta": dict(delta), **rest}, *_]:
            text, reason = delta.get("content"), rest.get("finish_reason")
            ended = _reason(reason) if reason else None
            return (text if isinstance(text, str) else ""), ended, rest.get("logprobs")
        case [{"text": str(text), **rest}, *_]:
            # The reason is an empty string until the text ends.
            reason = rest.get("finish_reason")
            return text, _reason(reason) if reason else None, None
        case []:
            return "", None, None
    raise WorkerFailed("an event of the worker's stream has no choice")


def usage_in_details(details: object, prompt_tokens: str, read: Callable[[], int]) -> Usage | None:
    """Return the usage from the details of a text, `None` without them.

    The prompt's tokens come from the details, or else from the header that older servers send, or else from `read`, as an
    estimate.
    """
    match details:
        case {"generated_tokens": int(written), **rest} if 0 <= written <= _MOST_TOKENS:
            pass
        case _:
            return None
    match rest.get("input_length"), rest.get("prefill"):
        case int(length), _ if 0 <= length <= _MOST_TOKENS:
            return Usage(length, written)
        case _, [*prefill] if prefill:
            return Usage(len(prefill), written)
    if prompt_tokens.isascii() and prompt_tokens.isdigit() and len(prompt_tokens) < 16:
        return Usage(int(prompt_tokens), written)
    return Usage(read(), written, estimated=True)


def _chat(request: TextRequest, choice: int, answer: Mapping[str, object]) -> OutputPiece:
    match answer.get("choices"):
        case [{"message": dict(message), **rest}, *_]:
            pass
        case _:
            raise WorkerFailed("the worker's answer has no message")
    usage = read_usage(answer)
    text = _notice(message) or message.get("content")
    calls = () if _notice(message) else _calls(request, choice, message.get("tool_calls"))
    if calls:
        return OutputPiece(usage=usage, calls=calls)
    if request.tool_choice in ("required", "named"):
        raise WorkerFailed("the worker called no tool")
    reason = _reason(rest.get("finish_reason"))
    tokens = _likely(request, rest.get("logprobs"))
    return OutputPiece(text if isinstance(text, str) else "", reason, usage, tokens=tokens)


def _notice(message: Mapping[str, object]) -> str:
    """Return why the model called none of the tools: TGI offers it an additional tool with which it says so."""
    match message.get("tool_calls"):
        case [{"function": {"name": "notify_error", "arguments": {"error": str(reason)}}}]:
            return reason
    return ""


def _calls(request: TextRequest, choice: int, value: object) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    names = {tool["name"] for tool in request.tools}
    for call in value if isinstance(value, list) else []:
        match call:
            case {"function": {"name": str(name), "arguments": arguments}} if name in names:
                # All of TGI's calls have the id 0, and their arguments may be an object, or null for none.
                content = {} if arguments is None else arguments
                text = content if isinstance(content, str) else written_answer(content).decode()
                calls.append(ToolCall(f"call_{uuid4().hex}", name, text, choice))
            case _:
                raise WorkerFailed("the worker called a tool that it was not offered")
    return tuple(calls)
