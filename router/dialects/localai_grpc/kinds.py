"""Kinds of request other than texts that a LocalAI backend serves, each with its call."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from router.answer import Answer
from router.dialects.localai_grpc import media, vectors
from router.dialects.localai_grpc.backend import METHODS, Backend, Errand
from router.dialects.localai_grpc.exchange import Asking
from router.dialects.localai_grpc.files import sweep
from router.dialects.localai_grpc.vectors import serve_store, wrong_length
from router.errors import WorkerTimeout
from router.http.fetch import Fetching
from router.requests import STORES, Kind, Request
from router.rpc.failures import RpcFailed

SERVED: Mapping[Kind, Callable[[Asking], Coroutine[Any, Any, Answer]]] = {
    Kind.EMBEDDING: vectors.embed,
    Kind.RERANK: vectors.rank,
    Kind.TOKENIZE: vectors.cut,
    Kind.IMAGE: media.generate,
    Kind.IMAGE_EDIT: media.edit,
    Kind.TRANSCRIPTION: media.write_down,
    Kind.TRANSLATION: media.write_down,
    Kind.SPEECH: media.speak,
    Kind.SOUND: media.make_sound,
    **dict.fromkeys(STORES, serve_store),
}
"""By kind, the function that answers it."""


class Others:
    """Client that asks for everything except texts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._fetching = Fetching(backend.settings)
        sweep()

    async def answer(self, request: Request, model: str, errand: Errand) -> Answer:
        """Return the whole answer; raise a `WorkerError`. All calls that it takes share one timeout."""
        settings, own_model = self._backend.settings, errand.worker.own_model
        seconds, ask = settings.total_timeout, partial(self._ask, errand)
        fetch, voices = self._fetching.image, settings.voice_files
        asking = Asking(request, model, own_model, ask, fetch, voices)
        try:
            async with asyncio.timeout(seconds):
                return await SERVED[request.kind](asking)
        except TimeoutError as error:
            raise WorkerTimeout("answer", seconds) from error

    async def _ask(self, errand: Errand, call: str, fields: Mapping[str, object]) -> Any:
        method = METHODS[call]
        message = method.asked(**fields)
        try:
            try:
                return await errand.ask(method, message)
            except RpcFailed as failed:
                if wrong_length(failed) or not await errand.mended(failed):
                    raise
            return await errand.ask(method, message)
        except RpcFailed as failed:
            raise wrong_length(failed) or failed.as_error(call) from failed
