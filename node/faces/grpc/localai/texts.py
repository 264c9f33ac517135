"""LocalAI's texts, as requests: `Predict` and its stream, as a chat or a completion.

In proto3 a number that was not set is 0, and LocalAI fills in its own defaults. So 0 counts as the caller's choice only for the
temperature, where it means greedy; for every other number it means that there is none.
"""

import base64
import codecs
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import orjson

from node.faces.grpc import name_dropped, stops_of
from node.faces.grpc.localai.model_lookup import ModelLookup
from node.faces.model_call import ModelAnswer
from router.errors import BadRequest
from router.openai import text_parser
from router.openai.media_type import type_of
from router.openai.text_parser import CallPart, TextEvent, TextFailure
from router.openai.text_writer import Delta
from router.openai.usage import Usage
from router.requests import Kind
from router.rpc.messages import LOCALAI, message_class, methods_of, parse_message
from router.rpc.server import RpcRefused
from router.translate.text import StopFilter
from router.translate.verbatim import LOCALAI as LOCALAI_WORDS
from router.translate.verbatim import Verbatim

_USUAL_REPEAT = 64
_REPLY = methods_of(LOCALAI)["Predict"].reply_class
_DELTA = message_class("backend.ChatDelta")
_CALL = message_class("backend.ToolCallDelta")


NAMES: Mapping[str, str] = {
    "max_tokens": "Tokens", "temperature": "Temperature", "top_p": "TopP", "top_k": "TopK", "min_p": "MinP",
    "typical_p": "TypicalP", "repetition_penalty": "Penalty", "repeat_last_n": "Repeat", "frequency_penalty": "FrequencyPenalty",
    "presence_penalty": "PresencePenalty", "seed": "Seed", "stop": "StopPrompts", "logit_bias": "LogitBias",
    "grammar": "Grammar", "ignore_eos": "IgnoreEOS", "n_keep": "NKeep", "mirostat": "Mirostat", "mirostat_tau": "MirostatTAU",
    "mirostat_eta": "MirostatETA", "tools": "Tools", "tool_choice": "ToolChoice",
}  # fmt: skip
"""Names in OpenAI's form, or llama.cpp's → fields of a prediction."""


def handlers(lookup: ModelLookup) -> dict[str, Any]:
    """Return the handlers of RPCs for texts."""
    texts = _Texts(lookup)
    return {"Predict": texts.predict, "PredictStream": texts.stream}


class _Texts:
    def __init__(self, lookup: ModelLookup) -> None:
        self._lookup = lookup

    async def predict(self, request: Any, call: Any) -> Any:
        kind, fields = request_in_openai_form(request)
        began = time.monotonic()
        async with self._lookup.answer(call, kind, fields, _verbatim(request, "Predict")) as answer:
            name_dropped(call, answer, NAMES, fields_without_effect(request))
            if answer.verbatim:
                reply = parse_message(_REPLY, await answer.body())
                self._lookup.done(call, _usage(reply), time.monotonic() - began)
                return _Cut(request).whole(reply)
            text_events = [event async for events in answer.events() for event in events]
        self._lookup.done(call, text_parser.usage_of(text_events), time.monotonic() - began)
        return _reply(text_parser.text_of(text_events), text_events)

    async def stream(self, request: Any, call: Any) -> AsyncIterator[Any]:
        kind, fields = request_in_openai_form(request)
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        ends: list[TextEvent] = []
        began = time.monotonic()
        async with self._lookup.answer(
            call, kind, fields, _verbatim(request, "PredictStream")
        ) as answer:
            name_dropped(call, answer, NAMES, fields_without_effect(request))
            if answer.verbatim:
                async for reply in self._own(request, call, answer, began):
                    yield reply
                return
            async for events in answer.events():
                text, calls = text_parser.text_of(events), _calls(events)
                ends += [event for event in events if not isinstance(event, Delta | CallPart)]
                if text or calls:
                    yield _REPLY(message=text.encode(), chat_deltas=calls)
        self._lookup.done(call, text_parser.usage_of(ends), time.monotonic() - began)
        yield _reply("", ends)

    async def _own(
        self, request: Any, call: Any, answer: ModelAnswer, began: float
    ) -> AsyncIterator[Any]:
        """Pass on the replies of a worker of this protocol as they arrive, up to a stop string."""
        cut = _Cut(request)
        async for message in answer.messages():
            if isinstance(message, Usage):
                self._lookup.done(call, message, time.monotonic() - began)
            else:
                yield cut.next(parse_message(_REPLY, message))
            if cut.over:
                return
        if (rest := cut.rest()) is not None:
            yield rest


class _Cut:
    """Cutter of a backend's text before the first stop string, where many backends do not stop; `over` is set once it occurred.

    Without stop strings, replies are passed on as they are.
    """

    def __init__(self, request: Any) -> None:
        self._stops = StopFilter(stops_of(request.StopPrompts, "StopPrompts"))
        self._is_idle = not any(request.StopPrompts)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def over(self) -> bool:
        return bool(self._stops.hit)

    def next(self, reply: Any) -> Any:
        """Return the next reply, without text that may be the beginning of a stop string."""
        if not self._is_idle:
            shown = self._stops.feed(self._decoder.decode(reply.message))
            reply.message = shown.encode(errors="replace")
        return reply

    def rest(self) -> Any:
        """Return the text that was held back, where the text ended by itself; `None` for nothing."""
        text = self._stops.feed(self._decoder.decode(b"", final=True)) + self._stops.flush()
        return _REPLY(message=text.encode(errors="replace")) if text else None

    def whole(self, reply: Any) -> Any:
        """Return the only reply of a text, cut."""
        reply = self.next(reply)
        if (rest := self.rest()) is not None:
            reply.message += rest.message
        return reply


def fields_without_effect(request: Any) -> list[str]:
    """Return the names of set fields without an equivalent in OpenAI's form; LocalAI's own defaults do not count as set."""
    effects = {
        "NegativePrompt": request.NegativePrompt,
        "NegativePromptScale": request.NegativePromptScale if request.NegativePrompt else 0,
        "TailFreeSamplingZ": request.TailFreeSamplingZ not in (0, 1),
        "PenalizeNL": request.PenalizeNL,
        "Logprobs": request.Logprobs,
        "TopLogprobs": request.TopLogprobs,
        "Metadata": request.Metadata,
    }
    return [name for name, value in effects.items() if value]


def _verbatim(request: Any, call: str) -> Verbatim:
    """Return a prediction in LocalAI's own protocol."""
    return Verbatim(LOCALAI_WORDS, call, request.SerializeToString())


def _usage(reply: Any) -> Usage | None:
    is_known = reply.tokens > 0 and reply.prompt_tokens > 0
    return Usage(reply.prompt_tokens, reply.tokens) if is_known else None


def request_in_openai_form(request: Any) -> tuple[Kind, dict[str, object]]:
    """Return a prediction in OpenAI's form; raise `BadRequest`."""
    fields = _sampling(request)
    media = {"Images": request.Images, "Audios": request.Audios, "Videos": request.Videos}
    if not (request.UseTokenizerTemplate and request.Messages):
        for name in (name for name, files in media.items() if files):
            reason = f"{name.lower()} are part of chats only: set UseTokenizerTemplate"
            raise BadRequest(reason, param=name)
        return Kind.COMPLETION, {**fields, "prompt": request.Prompt}
    messages = [_message(message) for message in request.Messages]
    if any(media.values()):
        _add_media(messages, request)
    tools = {"tools": _json(request.Tools, "Tools"), "tool_choice": _choice(request.ToolChoice)}
    fields |= {name: value for name, value in tools.items() if value}
    return Kind.CHAT, {**fields, "messages": messages}


def _message(message: Any) -> dict[str, object]:
    message_fields: dict[str, object] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value := getattr(message, name):
            message_fields[name] = value
    if message.tool_calls:
        message_fields["tool_calls"] = _json(message.tool_calls, "Messages.tool_calls")
    return message_fields


def _choice(text: str) -> object:
    """Return the tool choice, given as a word or as JSON; raise `BadRequest`."""
    return _json(text, "ToolChoice") if text[:1] in ("{", '"') else text


def _sampling(request: Any) -> dict[str, object]:
    # Floats have 32 bits: without rounding, 0.7 would become 0.699999988.
    sampling: Mapping[str, object] = {
        "max_tokens": request.Tokens if request.Tokens > 0 else None,
        "temperature": _rounded(request.Temperature),
        "top_p": _rounded(request.TopP) or None,
        "top_k": request.TopK if request.TopK > 0 else None,
        "typical_p": _rounded(request.TypicalP) or None,
        "repetition_penalty": _rounded(request.Penalty) or None,
        "frequency_penalty": _rounded(request.FrequencyPenalty) or None,
        "presence_penalty": _rounded(request.PresencePenalty) or None,
        # Unsigned 32-bit seeds arrive as signed numbers; -1 means no seed.
        "seed": request.Seed & 0xFFFFFFFF if request.Seed not in (0, -1) else None,
        "stop": stops_of(request.StopPrompts, "StopPrompts") or None,
        "logit_bias": _json(request.LogitBias, "LogitBias"),
        "min_p": _rounded(request.MinP) or None,
        "repeat_last_n": request.Repeat if request.Repeat not in (0, _USUAL_REPEAT) else None,
        "grammar": request.Grammar or None,
        "ignore_eos": request.IgnoreEOS or None,
        "n_keep": request.NKeep or None,
        **_mirostat(request),
    }
    return {name: value for name, value in sampling.items() if value is not None}


def _mirostat(request: Any) -> dict[str, object]:
    """Return llama.cpp's fields for Mirostat, if it is enabled: LocalAI always fills in tau and eta."""
    if not request.Mirostat:
        return {}
    return {
        "mirostat": request.Mirostat,
        "mirostat_tau": _rounded(request.MirostatTAU) or None,
        "mirostat_eta": _rounded(request.MirostatETA) or None,
    }


def _rounded(number: float) -> float:
    return round(number, 6)


def _json(text: str, name: str) -> object:
    if not text:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{name} is no JSON", param=name) from error


def _add_media(messages: list[dict[str, object]], request: Any) -> None:
    """Add images, sounds and videos, which are in base64, to the last message of the user; raise `BadRequest`."""
    last = next((m for m in reversed(messages) if m["role"] == "user"), None)
    if last is None:
        raise BadRequest("images, audio and video require a user message", param="Messages")
    shown: list[object] = [
        {"type": "image_url", "image_url": {"url": _data(video)}} for video in request.Images
    ]
    shown += [{"type": "input_audio", "input_audio": _sound(video)} for video in request.Audios]
    shown += [
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{video}"}}
        for video in request.Videos
    ]
    last["content"] = [{"type": "text", "text": last["content"]}, *shown]


def _sound(sound: str) -> dict[str, str]:
    try:
        media_type = type_of(base64.b64decode(sound[:64], validate=True))
    except ValueError as error:
        raise BadRequest("a sound must be in base64", param="Audios") from error
    return {"data": sound, "format": media_type.ending.removeprefix(".") or "wav"}


def _data(image: str) -> str:
    try:
        begins = base64.b64decode(image[:16], validate=True)
    except ValueError as error:
        raise BadRequest("an image must be in base64", param="Images") from error
    kind = "jpeg" if begins.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{image}"


def _calls(events: Iterable[TextEvent]) -> list[Any]:
    """Return the calls of tools among events, in the form of newer backends."""
    calls = [
        _CALL(index=part.index, id=part.id, name=part.name, arguments=part.arguments)
        for part in events
        if isinstance(part, CallPart)
    ]
    return [_DELTA(tool_calls=calls)] if calls else []


def _reply(text: str, events: list[TextEvent]) -> Any:
    for event in events:
        if isinstance(event, TextFailure):
            raise RpcRefused("INTERNAL", event.message)
    reply = _REPLY(message=text.encode(), chat_deltas=_calls(events))
    usage = text_parser.usage_of(events)
    if usage is not None and not usage.estimated:
        # Backends that do not count tokens report 0; the protocol cannot mark an estimate.
        reply.tokens, reply.prompt_tokens = int32(usage.completion), int32(usage.prompt)
    return reply


def int32(number: int) -> int:
    """Return `number`, or the greatest 32-bit integer if that is less."""
    return min(number, 2**31 - 1)
