"""Server of LocalAI's backend protocol (`backend.Backend`): LocalAI uses it as an external backend, and the mesh answers.

`LoadModel` selects the model from then on for all callers of this face: LocalAI has one backend for each of its models, and opens
a connection for each call. The metadata `x-model` takes precedence over it; without either, it is `faces.default_model`.
"""

import inspect
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from node.auth.access import shown_key
from node.faces import Serving
from node.faces.grpc import Handlers, RpcAccess
from node.faces.grpc.localai import kinds, texts
from node.faces.grpc.localai.model_lookup import ModelLookup
from router.rpc.messages import LOCALAI, message_class, methods_of, parse_message
from router.rpc.server import metadata_of

SERVICE = LOCALAI

ENDPOINTS: Mapping[str, str] = {
    "Health": "OK as long as the node serves",
    "Predict": "a chat if messages are to be templated, else a completion of the prompt",
    "LoadModel": "selects a model of the mesh; fails if no node serves it",
    "PredictStream": "the same, in a stream",
    "Embedding": "the embedding of a text or of tokens",
    "GenerateImage": "an image, or one made of `src`, written to `dst` under `faces.localai_files`",
    "AudioTranscription": "the text of a recording at `dst` under `faces.localai_files`",
    "TTS": "speech as WAV, written to `dst` under `faces.localai_files`",
    "SoundGeneration": "a sound, written to `dst` under `faces.localai_files`",
    "TokenizeString": "the tokens of a text",
    "Status": "READY, UNINITIALIZED without a model, ERROR if no node serves it; the memory of a backend",
    "StoresSet": "stores values in the selected store",
    "StoresDelete": "deletes values",
    "StoresGet": "returns values by key",
    "StoresFind": "returns the most similar values",
    "Rerank": "documents by relevance to a query",
    "GetMetrics": "speed and tokens of the model's last text at this node; never a prompt",
}
"""What becomes of each RPC."""

_METHODS = methods_of(LOCALAI)
_UNINITIALIZED, _READY, _ERROR = 0, 2, -1


def handlers(context: Serving, door: RpcAccess) -> Handlers:
    """Return the handlers of the RPCs; raise `OSError` when `faces.localai_files` is not a directory."""
    settings, face = context.settings.faces, _Face(context, door)
    answers = (
        face.own()
        | texts.handlers(face.desk)
        | kinds.handlers(face.desk)
        | kinds.file_handlers(face.desk, _root(settings.localai_files))
    )
    return {name: _locked(answer, door) for name, answer in answers.items()}


def _locked(answer: Any, door: RpcAccess) -> Any:
    """Return a handler that first checks the caller's key, in the metadata as in LocalAI: `authorization: Bearer KEY`."""

    def check(call: Any) -> None:
        door.holder(shown_key(metadata_of(call)), call)

    async def unary(request: Any, call: Any) -> Any:
        check(call)
        return await answer(request, call)

    async def stream(request: Any, call: Any) -> AsyncIterator[Any]:
        check(call)
        async for reply in answer(request, call):
            yield reply

    return stream if inspect.isasyncgenfunction(answer) else unary


class _Face:
    def __init__(self, context: Serving, door: RpcAccess) -> None:
        self.desk = ModelLookup(context, door)

    def own(self) -> dict[str, Any]:
        return {
            "Health": self.health,
            "LoadModel": self.load,
            "Status": self.status,
            "GetMetrics": self.metrics,
        }

    async def health(self, request: Any, call: Any) -> Any:  # noqa: ARG002
        return _METHODS["Health"].reply_class(message=b"OK")

    async def load(self, request: Any, call: Any) -> Any:  # noqa: ARG002
        # LocalAI expects a failure of loading in the message, with a status of success.
        reply_class = _METHODS["LoadModel"].reply_class
        model = request.Model
        if not model or not self.desk.is_offered(model):
            return reply_class(success=False, message=f"no node serves the model {model[:200]!r}")
        self.desk.meant = model
        return reply_class(success=True, message=f"{model} is served by the mesh")

    async def status(self, request: Any, call: Any) -> Any:  # noqa: ARG002
        model = self.desk.model_of(call)
        memory = message_class("backend.MemoryUsageData")()
        served = bool(model) and self.desk.is_served(model)
        if served and (status_body := await self.desk.status(call)):
            memory = parse_message(_METHODS["Status"].reply_class, status_body).memory
        state = _UNINITIALIZED if not model else _READY if served else _ERROR
        return _METHODS["Status"].reply_class(state=state, memory=memory)

    async def metrics(self, request: Any, call: Any) -> Any:  # noqa: ARG002
        reply_class = _METHODS["GetMetrics"].reply_class
        last = self.desk.last.get(self.desk.model_of(call))
        if last is None:
            return reply_class()
        return reply_class(
            tokens_per_second=last.speed,
            tokens_generated=texts.int32(last.usage.completion),
            prompt_tokens_processed=texts.int32(last.usage.prompt),
        )


def _root(path: str) -> Path | None:
    if not path:
        return None
    root = Path(path).resolve()
    if not root.is_dir():
        raise OSError(f"faces.localai_files is {path}: there is no such directory")
    return root
