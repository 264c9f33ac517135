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
    wanted = read_or_reject(tokenize.read, request)
    refuse_unread_fields("TGI", wanted, SHAPING - _TEXTS)
    unheard = ["add_special_tokens"] if wanted.special is False else []
    unheard += [name for name in dropped_names(wanted) if name not in _TEXTS]
    return MappedRequest(TOKENIZE_PATH, ({"inputs": wanted.text},), tuple(unheard))


def read_token_answer(request: Request, body: bytes) -> bytes:
    """Return TGI's tokens as OpenAI's JSON; raise `WorkerFailed` for an invalid answer."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the worker's answer is not valid JSON") from error
    if not isinstance(said, list):
        raise WorkerFailed("the worker's answer is not a list of tokens")
    tokens = [_token_and_place(one) for one in said]
    numbers = [number for number, _ in tokens]
    wanted = tokenize.read(request)
    if wanted.texts:
        return write_token_texts(wanted, numbers, [text for _, text in tokens])
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
    said = _success(body)
    if not isinstance(said.get("generated_text"), str):
        raise WorkerFailed("the worker's answer has no text")
    return usage_in_details(
        said.get("details"), header("x-prompt-tokens"), partial(_read, request_body)
    )


def _tells(request_body: bytes) -> UsageFormat:
    def read(data: bytes) -> Usage | None:
        return usage_in_details(parse_object(data).get("details"), "", partial(_read, request_body))

    return UsageFormat(b'"generated_tokens"', read)


def _success(body: bytes) -> Mapping[str, object]:
    said = answer_object(body)
    if "error" in said:
        raise failure(said)
    return said


def _read(request_body: bytes) -> int:
    """Estimate how many tokens the prompt had."""
    inputs = orjson.loads(request_body).get("inputs")
    return estimated_tokens(len(inputs.encode())) if isinstance(inputs, str) else 0


PASSING = PassThrough(
    calls=frozenset({request_mapping.WHOLE, request_mapping.STREAM}),
    addressed=_addressed,
    whole=_whole,
    streamed=Streamed(event=_event, over=_OVER, tells=_tells),
)


_MOST_TOKENS = 2**53
_REASONS: Mapping[str, Reason] = {"length": "length", "tool_calls": "tool_calls"}


def part(asked: TextRequest, data: bytes) -> OutputPiece:
    """Read one event of a stream; raise a `WorkerError` if it is a failure or invalid."""
    if data == b"[DONE]":
        return OutputPiece(over=True)
    said = answer_object(data)
    if "error" in said:
        raise failure(said)
    if "choices" in said:
        text, reason, likely = _of_chunk(said)
        # A later event may still report the usage.
        return OutputPiece(text, reason, read_usage(said), tokens=_likely(asked, likely))
    if asked.kind is Kind.CHAT:
        raise WorkerFailed("an event of the worker's stream has no choice")
    text, reason = read_token(said)
    spent = usage_in_details(
        said.get("details"), "", lambda: estimate_prompt_tokens(asked, 0)
    ) or read_usage(said)
    tokens = _tokens(asked, [said.get("token")], [said.get("top_tokens")])
    return OutputPiece(text, reason, spent, over=reason is not None, tokens=tokens)


def whole(
    asked: TextRequest, choice: int, body: bytes, header: Callable[[str], str]
) -> list[Event]:
    """Read an answer in one piece, which has one choice."""
    said = answer_object(body)
    if "error" in said:
        raise failure(said)
    if asked.kind is Kind.CHAT:
        return in_one_piece(asked, choice, _chat(asked, choice, said))
    match said:
        case {"choices": [{"text": str(text), **ending}, *_]}:
            ended = _reason(ending.get("finish_reason"))
            return in_one_piece(asked, choice, OutputPiece(text, ended, read_usage(said)))
        case {"generated_text": str(text)}:
            details = said.get("details")
            rest = details if isinstance(details, dict) else {}
            told_by = header("x-prompt-tokens")
            spent = usage_in_details(
                details, told_by, lambda: estimate_prompt_tokens(asked, choice)
            )
            tokens = _tokens(asked, rest.get("tokens"), rest.get("top_tokens"))
            ended = _reason(rest.get("finish_reason"))
            return in_one_piece(asked, choice, OutputPiece(text, ended, spent, tokens=tokens))
    raise WorkerFailed("the worker's answer has no text")


def failure(said: Mapping[str, object]) -> WorkerError:
    """Return the error of an attempt that corresponds to an error of TGI's."""
    match said.get("error_type"):
        case "overloaded":
            return WorkerBusy("the worker is full")
        case "validation" | "tool_error" | "template_error":
            return WorkerRejected(400, orjson.dumps({"error": str(said.get("error"))}))
        case "incomplete_generation":
            return WorkerIncomplete()
        case kind:
            return WorkerFailed(f"the worker failed: {kind if kind in _KNOWN else 'no reason'}")


_KNOWN = ("generation", "healthcheck", "unhealthy")


def _reason(said: object) -> Reason:
    return _REASONS.get(said, "stop") if isinstance(said, str) else "stop"


def read_token(said: Mapping[str, object]) -> tuple[str, Reason | None]:
    """Return the visible text of a stream's token, and the finish reason if the text ends there; raise `WorkerFailed`."""
    match said:
        case {"token": {"text": str(text), **rest}}:
            details = said.get("details")
            ended = isinstance(details, dict) or isinstance(said.get("generated_text"), str)
            reason = details.get("finish_reason") if isinstance(details, dict) else None
            shown = "" if rest.get("special") is True else text
            return shown, _reason(reason) if ended else None
    raise WorkerFailed("an event of the worker's stream has no token")


def _tokens(asked: TextRequest, given: object, likeliest: object) -> tuple[Token, ...]:
    """Read the visible tokens of a text, each with the likeliest ones at its position; skip what is no token."""
    if asked.logprobs is None:
        return ()
    tokens = given if isinstance(given, list) else []
    others = likeliest if isinstance(likeliest, list) else []
    found = []
    for token, beside in zip_longest(tokens, others[: len(tokens)]):
        if (drawn := _token(token)) is not None:
            rest = filter(None, map(_token, beside if isinstance(beside, list) else ()))
            found.append(replace(drawn, likeliest=tuple(islice(rest, MAX_LIKELIEST))))
    return tuple(found)


def _token(given: object) -> Token | None:
    match given:
        case {"text": str(text), **rest} if rest.get("special") is not True:
            return logprobs.token(text, rest.get("logprob"), rest.get("id"))
    return None


def _likely(asked: TextRequest, given: object) -> tuple[Token, ...]:
    return () if asked.logprobs is None else logprobs.read(given)


def _of_chunk(said: Mapping[str, object]) -> tuple[str, Reason | None, object]:
    """Return the text, finish reason and `logprobs` of an event."""
    match said.get("choices"):
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


def _chat(asked: TextRequest, choice: int, said: Mapping[str, object]) -> OutputPiece:
    match said.get("choices"):
        case [{"message": dict(message), **rest}, *_]:
            pass
        case _:
            raise WorkerFailed("the worker's answer has no message")
    spent = read_usage(said)
    text = _notice(message) or message.get("content")
    calls = () if _notice(message) else _calls(asked, choice, message.get("tool_calls"))
    if calls:
        return OutputPiece(usage=spent, calls=calls)
    if asked.tool_choice in ("required", "named"):
        raise WorkerFailed("the worker called no tool")
    reason = _reason(rest.get("finish_reason"))
    tokens = _likely(asked, rest.get("logprobs"))
    return OutputPiece(text if isinstance(text, str) else "", reason, spent, tokens=tokens)


def _notice(message: Mapping[str, object]) -> str:
    """Return why the model called none of the tools: TGI offers it an additional tool with which it says so."""
    match message.get("tool_calls"):
        case [{"function": {"name": "notify_error", "arguments": {"error": str(why)}}}]:
            return why
    return ""


def _calls(asked: TextRequest, choice: int, given: object) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    names = {tool["name"] for tool in asked.tools}
    for call in given if isinstance(given, list) else []:
        match call:
            case {"function": {"name": str(name), "arguments": arguments}} if name in names:
                # All of TGI's calls have the id 0, and their arguments may be an object, or null for none.
                said = {} if arguments is None else arguments
                text = said if isinstance(said, str) else written_answer(said).decode()
                calls.append(ToolCall(f"call_{uuid4().hex}", name, text, choice))
            case _:
                raise WorkerFailed("the worker called a tool that it was not offered")
    return tuple(calls)
