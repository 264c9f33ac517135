"""Look-up of the model that a caller of the LocalAI face means, and the request to it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from node.auth.access import shown_key
from node.auth.principal import Principal
from node.faces import Serving
from node.faces.grpc import RpcAccess, name_dropped, request_of
from node.faces.model_call import ModelAnswer, model_answer
from router.errors import RouterError
from router.openai.usage import Usage
from router.requests import Kind, Request
from router.rpc.server import RpcRefused, metadata_of
from router.translate.verbatim import LOCALAI, Verbatim

MAX_MODELS = 1_000
"""Models whose last text is remembered; beyond that, the oldest is evicted."""

_STATUS_SECONDS = 2.0
_EMPTY = b"\x08\x00"  # a field that no version defines, so it has no meaning
_SAME = {
    name: name for name in ("language", "negative_prompt", "seed", "size", "step", "top_n", "voice")
}
"""Parameters with the same name in LocalAI's protocol and in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The tokens of one answer, and its speed in tokens a second."""

    usage: Usage
    speed: float


class ModelLookup:
    """Client of the mesh for this face. `meant` is the model that was loaded last, `last` the last text of each model."""

    def __init__(self, context: Serving, door: RpcAccess) -> None:
        self.context = context
        self._door = door
        self.meant = ""
        self.last: dict[str, ModelReply] = {}

    def model_of(self, call: Any) -> str:
        """Return the model that a call means, `""` when none is named."""
        model = metadata_of(call).get("x-model", "")
        return model or self.meant or self.context.settings.faces.default_model

    def is_offered(self, model: str) -> bool:
        """Return whether any node offers a model, ready or not."""
        explained = self.context.router.explain(self._probe(model))
        return bool(explained.ordered or explained.excluded)

    def is_served(self, model: str) -> bool:
        """Return whether a model has a candidate now."""
        return bool(self.context.router.explain(self._probe(model)).ordered)

    def request(
        self, call: Any, kind: Kind, fields: Mapping[str, object], verbatim: Verbatim | None = None
    ) -> Request:
        """Return the request of a call; raise `RpcRefused` without a model, an `AuthError`, or what `request_of` raises."""
        model = self.model_of(call)
        if not model:
            message = "name a model: with LoadModel, in the metadata x-model, or by faces.default_model of the node"
            raise RpcRefused("FAILED_PRECONDITION", message)
        body, holder = {"model": model, **fields}, self._holder(call)
        return request_of(self.context, kind, body, metadata_of(call), verbatim, holder)

    def _holder(self, call: Any) -> Principal:
        return self._door.holder(shown_key(metadata_of(call)), call)

    @asynccontextmanager
    async def answer(
        self, call: Any, kind: Kind, fields: Mapping[str, object], verbatim: Verbatim | None
    ) -> AsyncIterator[ModelAnswer]:
        """Have a text written, to be read as it arrives; the caller of this method then records its usage, see `done`.

        `verbatim` is the same request in LocalAI's protocol.
        """
        async with model_answer(
            self.context, self._holder(call), self.request(call, kind, fields, verbatim)
        ) as answer:
            yield answer

    def done(self, call: Any, usage: Usage | None, seconds: float) -> None:
        """Record the usage of a text, if its worker reported it."""
        if usage is None or usage.estimated:
            return
        model = self.model_of(call)
        self.last.pop(model, None)
        self.last[model] = ModelReply(usage, usage.completion / seconds if seconds > 0 else 0.0)
        if len(self.last) > MAX_MODELS:
            del self.last[next(iter(self.last))]

    async def body(
        self,
        call: Any,
        kind: Kind,
        fields: Mapping[str, object],
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        """Return an answer in one piece; `own` maps fields that only few workers support to the caller's names."""
        return await self.whole_answer(call, self.request(call, kind, fields), own)

    async def whole_answer(self, call: Any, request: Request, own: Mapping[str, str]) -> bytes:
        """Return the answer in one piece to a request, and list the parameters without effect in the metadata."""
        async with model_answer(self.context, self._holder(call), request) as answer:
            name_dropped(call, answer, {**_SAME, **own}, own.values())
            return await answer.body()

    async def status(self, call: Any) -> bytes:
        """Return the status that a worker of this protocol reports within `_STATUS_SECONDS`; else `b""`."""
        # OpenAI's form has no equivalent, so only such workers answer. An empty message would look like none.
        verbatim = Verbatim(LOCALAI, "Status", _EMPTY, needs="Status")
        request = self.request(call, Kind.COMPLETION, {"prompt": "", "max_tokens": 1}, verbatim)
        try:
            async with (
                asyncio.timeout(_STATUS_SECONDS),
                model_answer(self.context, self._holder(call), request) as answer,
            ):
                return await answer.body() if answer.verbatim else b""
        except (RouterError, TimeoutError):
            return b""

    def _probe(self, model: str) -> Request:
        return request_of(self.context, Kind.CHAT, {"model": model, "messages": []}, {})
