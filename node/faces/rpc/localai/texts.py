"""How is a text asked for in LocalAI's words? `Predict` and its stream, as a chat or a completion.

In proto3 a number that nobody said is 0, and LocalAI fills in its own defaults: 0 is the caller's wish for the temperature alone,
which is greedy then; for every other it is none.
"""

import base64
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import orjson

from node.faces.rpc.localai.desk import Desk
from router import hearing
from router.errors import BadRequest
from router.hearing import Failure, Heard
from router.rendering import Delta
from router.requests import Kind
from router.rpc.messages import LOCALAI, methods_of, parsed
from router.rpc.serving import Refused
from router.usage import Usage
from router.verbatim import LOCALAI as LOCALAI_WORDS
from router.verbatim import Verbatim

_REPLY = methods_of(LOCALAI)["Predict"].told


def handlers(desk: Desk) -> dict[str, Any]:
    """Return the RPCs for texts."""

    async def predict(asked: Any, call: Any) -> Any:
        kind, fields = said_in_full(asked)
        began = time.monotonic()
        async with desk.asked(call, kind, fields, _verbatim(asked, "Predict")) as told:
            if told.verbatim:
                reply = parsed(_REPLY, await told.body())
                desk.done(call, _usage(reply), time.monotonic() - began)
                return reply
            heard = [event async for events in told.events() for event in events]
        desk.done(call, hearing.usage_of(heard), time.monotonic() - began)
        return _reply(hearing.text_of(heard), heard)

    async def stream(asked: Any, call: Any) -> AsyncIterator[Any]:
        kind, fields = said_in_full(asked)
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        ends: list[Heard] = []
        began = time.monotonic()
        async with desk.asked(call, kind, fields, _verbatim(asked, "PredictStream")) as told:
            if told.verbatim:
                async for said in told.messages():
                    if isinstance(said, Usage):
                        desk.done(call, said, time.monotonic() - began)
                    else:
                        yield parsed(_REPLY, said)
                return
            async for events in told.events():
                text = hearing.text_of(events)
                ends += [event for event in events if not isinstance(event, Delta)]
                if text:
                    yield _REPLY(message=text.encode())
        desk.done(call, hearing.usage_of(ends), time.monotonic() - began)
        yield _reply("", ends)

    return {"Predict": predict, "PredictStream": stream}


def _verbatim(asked: Any, call: str) -> Verbatim | None:
    """Return a prediction as it was asked for; beyond a stop string many backends go on, so those are seen to here."""
    return None if asked.StopPrompts else Verbatim(LOCALAI_WORDS, call, asked.SerializeToString())


def _usage(reply: Any) -> Usage | None:
    known = reply.tokens > 0 and reply.prompt_tokens > 0
    return Usage(reply.prompt_tokens, reply.tokens) if known else None


def said_in_full(asked: Any) -> tuple[Kind, dict[str, object]]:
    """Say a prediction in OpenAI's words; raise `BadRequest`."""
    fields = _sampling(asked)
    if not (asked.UseTokenizerTemplate and asked.Messages):
        if asked.Images:
            raise BadRequest(
                "images are seen in chats only: set UseTokenizerTemplate", param="Images"
            )
        return Kind.COMPLETION, {**fields, "prompt": asked.Prompt}
    messages: list[dict[str, object]] = [
        {"role": message.role, "content": message.content} for message in asked.Messages
    ]
    if asked.Images:
        _show(messages, asked.Images)
    return Kind.CHAT, {**fields, "messages": messages}


def _sampling(asked: Any) -> dict[str, object]:
    # Floats of 32 bits: 0.7 would be 0.699999988 in OpenAI's.
    wanted: Mapping[str, object] = {
        "max_tokens": asked.Tokens if asked.Tokens > 0 else None,
        "temperature": _rounded(asked.Temperature),
        "top_p": _rounded(asked.TopP) or None,
        "top_k": asked.TopK if asked.TopK > 0 else None,
        "typical_p": _rounded(asked.TypicalP) or None,
        "repetition_penalty": _rounded(asked.Penalty) or None,
        "frequency_penalty": _rounded(asked.FrequencyPenalty) or None,
        "presence_penalty": _rounded(asked.PresencePenalty) or None,
        "seed": asked.Seed if asked.Seed > 0 else None,
        "stop": list(asked.StopPrompts) or None,
        "logit_bias": _bias(asked.LogitBias),
        "grammar": asked.Grammar or None,
        "ignore_eos": asked.IgnoreEOS or None,
        "n_keep": asked.NKeep or None,
        **_mirostat(asked),
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _mirostat(asked: Any) -> dict[str, object]:
    """Say llama.cpp's own words for it, where it is wanted; LocalAI fills in the others always."""
    if not asked.Mirostat:
        return {}
    return {
        "mirostat": asked.Mirostat,
        "mirostat_tau": _rounded(asked.MirostatTAU) or None,
        "mirostat_eta": _rounded(asked.MirostatETA) or None,
    }


def _rounded(number: float) -> float:
    return round(number, 6)


def _bias(text: str) -> object:
    if not text:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest("LogitBias is no JSON", param="LogitBias") from error


def _show(messages: list[dict[str, object]], images: Iterable[str]) -> None:
    """Put images, which come in base64, to the last message of the user."""
    last = next((m for m in reversed(messages) if m["role"] == "user"), None)
    if last is None:
        raise BadRequest("images need a message of the user", param="Images")
    shown = [{"type": "image_url", "image_url": {"url": _data(one)}} for one in images]
    last["content"] = [{"type": "text", "text": last["content"]}, *shown]


def _data(image: str) -> str:
    try:
        begins = base64.b64decode(image[:16], validate=True)
    except ValueError as error:
        raise BadRequest("an image must be in base64", param="Images") from error
    kind = "jpeg" if begins.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{image}"


def _reply(text: str, heard: list[Heard]) -> Any:
    for event in heard:
        if isinstance(event, Failure):
            raise Refused("INTERNAL", event.message)
    usage = hearing.usage_of(heard)
    if usage is None or usage.estimated:
        # 0 is what backends say that do not count; there is no word for an estimate.
        return _REPLY(message=text.encode())
    return _REPLY(
        message=text.encode(), tokens=int32(usage.completion), prompt_tokens=int32(usage.prompt)
    )


def int32(number: int) -> int:
    """Return a number, or the greatest that there is room for."""
    return min(number, 2**31 - 1)
