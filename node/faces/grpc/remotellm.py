"""RemoteLLM's protocol (`llm_rpc.api.RemoteLLM`): three RPCs, no streams, a key in each message.

The model is named after the key (`KEY@MODEL`) or in the metadata `x-model`, else it is `faces.default_model`. There are no
parameters for sampling: a text ends by itself, at a stop string, or after `MAX_TOKENS`.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from node.auth.principal import Principal
from node.faces import Serving
from node.faces.grpc import Handlers, RpcAccess, name_dropped, request_of, stops_of
from node.faces.model_call import model_answer
from router.errors import BadRequest, UnknownModel, WorkerFailed, WorkerUnable
from router.openai import text_parser
from router.openai.text_parser import TextEvent, TextFailure
from router.requests import Kind, Request
from router.rpc.messages import REMOTELLM, methods_of, parse_message
from router.rpc.server import RpcRefused, metadata_of
from router.translate.text import StopFilter
from router.translate.verbatim import REMOTELLM as REMOTELLM_WORDS
from router.translate.verbatim import Verbatim

SERVICE = REMOTELLM

MAX_TOKENS = 512
"""The most tokens of one text: the protocol has no parameter for it."""

MAX_PROMPTS = 128
"""The most prompts of one message."""

AT_ONE_TIME = 4
"""Prompts of one message that are in flight at a time."""

ENDPOINTS: Mapping[str, str] = {
    "Generate": "a completion for each prompt; ends at the model's end, a stop string or 512 tokens",
    "GetLlmType": "the model's name, if a node serves it",
    "GenerationalGuts": "the inner state of a model, if its worker speaks this protocol",
}
"""What becomes of each RPC."""

_GENERATE, _TYPE = methods_of(REMOTELLM)["Generate"], methods_of(REMOTELLM)["GetLlmType"]
_GUTS = methods_of(REMOTELLM)["GenerationalGuts"]


def handlers(context: Serving, door: RpcAccess) -> Handlers:
    """Return the handlers of the RPCs."""
    face = _Face(context, door)
    return {"Generate": face.generate, "GetLlmType": face.llm_type, "GenerationalGuts": face.guts}


class _Face:
    def __init__(self, context: Serving, door: RpcAccess) -> None:
        self._context = context
        self._door = door

    async def generate(self, request: Any, call: Any) -> Any:
        model, principal = self._meant(request.api_key, call)
        if len(request.prompts) > MAX_PROMPTS:
            raise BadRequest(f"at most {MAX_PROMPTS} prompts in one message", param="prompts")
        semaphore, stops = asyncio.Semaphore(AT_ONE_TIME), stops_of(request.stop, "stop")

        async def one(prompt: str) -> Any:
            async with semaphore:
                return await self._text(call, principal, model, prompt, stops)

        try:
            async with asyncio.TaskGroup() as group:
                texts = [group.create_task(one(prompt)) for prompt in request.prompts]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return _GENERATE.reply_class(generations=[text.result() for text in texts])

    async def llm_type(self, llm_request: Any, call: Any) -> Any:
        model, principal = self._meant(llm_request.api_key, call)
        fields, metadata = {"model": model, "prompt": ""}, metadata_of(call)
        request = request_of(self._context, Kind.COMPLETION, fields, metadata, principal=principal)
        explained = self._context.router.explain(request)
        if not explained.ordered and not explained.excluded:
            raise UnknownModel(model[:100])
        return _TYPE.reply_class(llm_type=model)

    async def guts(self, guts_request: Any, call: Any) -> Any:
        model, principal = self._meant(guts_request.api_key, call)
        fields = {
            "model": model,
            "prompt": guts_request.prompt,
            "fft_embeddings": guts_request.fft_embeddings,
            "embedding_truncation": guts_request.embedding_trunkation,
            "top_k": guts_request.top_k_logits,
        }
        metadata = metadata_of(call)
        request = request_of(self._context, Kind.GUTS, fields, metadata, principal=principal)
        async with model_answer(self._context, principal, request) as answer:
            payload = orjson.loads(await answer.body())
        match payload:
            case {"tokens": list(), "next": list()}:
                pass
            case _:
                # Some servers answer on any path as if it were a chat.
                raise RpcRefused(
                    "UNIMPLEMENTED", "the model's worker does not report its inner state"
                )
        tokens = [
            {
                "token": token["token"],
                "token_id": token["id"],
                "positional_embedding": token["positional_embedding"],
                "token_embedding": token["token_embedding"],
                "hidden_state": token["hidden_state"],
            }
            for token in payload["tokens"]
        ]
        return _GUTS.reply_class(tokens=tokens, generations=payload["next"])

    async def _text(
        self, call: Any, principal: Principal, model: str, prompt: str, stops: list[str]
    ) -> Any:
        """Return the texts for one prompt: a single one, or as many as a worker of this protocol returns."""
        ask = partial(request_of, self._context, metadata=metadata_of(call), principal=principal)
        fields: dict[str, object] = {"model": model, "max_tokens": MAX_TOKENS}
        fields |= {"stop": stops} if stops else {}
        message = _GENERATE.request_class(prompts=[prompt], stop=stops).SerializeToString()
        verbatim = Verbatim(REMOTELLM_WORDS, _GENERATE.name, message)
        fields_of_text = {**fields, "prompt": prompt}
        request = ask(Kind.COMPLETION, fields_of_text, verbatim=verbatim)
        try:
            return await self._told(call, principal, model, request, stops)
        except WorkerUnable:
            # No worker supports completions: the prompt is sent as a chat message.
            messages = [{"role": "user", "content": prompt}]
            chat = ask(Kind.CHAT, {**fields, "messages": messages})
            return await self._told(call, principal, model, chat, stops)

    async def _told(
        self, call: Any, principal: Principal, model: str, request: Request, stops: list[str]
    ) -> Any:
        async with model_answer(self._context, principal, request) as answer:
            # `stop` is the only parameter that comes from the caller.
            name_dropped(call, answer, {"stop": "stop"})
            if answer.verbatim:
                reply = parse_message(_GENERATE.reply_class, await answer.body())
                if len(reply.generations) != 1:
                    raise WorkerFailed("the answer has no texts")
                return _cut(reply.generations[0], stops)
            text_events = [event async for events in answer.events() for event in events]
        return {"generations": [_written(model, text_events)]}

    def _meant(self, api_key: str, call: Any) -> tuple[str, Principal]:
        """Return the requested model and the principal; raise `RpcRefused` when no model is named, or an `AuthError`."""
        metadata = metadata_of(call)
        key, _, model_name = api_key.partition("@")
        principal = self._door.holder(key, call)
        model = (
            model_name or metadata.get("x-model", "") or self._context.settings.faces.default_model
        )
        if not model:
            raise RpcRefused(
                "INVALID_ARGUMENT",
                "name a model: as KEY@MODEL in api_key, in the metadata x-model, or by faces.default_model of the node",
            )
        return model, principal


def _cut(texts: Any, stops: list[str]) -> Any:
    """Cut texts before the first stop string: servers of the protocol do not stop there."""
    for generation in texts.generations if stops else ():
        end = StopFilter(stops)
        generation.text = end.feed(generation.text) + end.flush()
    return texts


def _written(model: str, events: Iterable[TextEvent]) -> dict[str, str]:
    events = list(events)
    if events and isinstance(events[-1], TextFailure):
        raise RpcRefused("INTERNAL", events[-1].message)
    info: dict[str, object] = {"finish_reason": text_parser.reason_of(events), "model": model}
    if usage := text_parser.usage_of(events):
        info["token_usage"] = {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            **({"estimated": True} if usage.estimated else {}),
        }
    return {"text": text_parser.text_of(events), "generation_info": orjson.dumps(info).decode()}
