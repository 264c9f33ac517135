"""Dialect for LocalAI's backends, over gRPC: each is a process that runs one model and reports little about its state.

Texts arrive as bytes that may end within a character, with token counts from some backends only, and include the stop string.
A chat becomes one text by the backend's template if it has one that works, else by the node's. Many backends answer one call
at a time, health checks included.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from router.answer import Answer
from router.dialects import Recognition
from router.dialects.localai_grpc import media, request_mapping, vectors
from router.dialects.localai_grpc.backend import METHODS, Backend, BackendJob, BackendRequest
from router.dialects.localai_grpc.files import remove_stale_folders
from router.dialects.localai_grpc.model_load import context_of, model_options
from router.dialects.localai_grpc.texts import MAPPING, Texts
from router.dialects.localai_grpc.vectors import serve_store, wrong_length
from router.dialects.localai_grpc.verbatim import CALLS, TemplateFailed, VerbatimTexts
from router.errors import WorkerFailed, WorkerTimeout
from router.http.fetch import ImageFetcher
from router.peers.links import Links
from router.requests import STORES, Kind, Request
from router.rpc.failures import RpcFailed
from router.select.candidates import Candidate
from router.translate.verbatim import Verbatim
from router.worker_description import OfferedModel, WorkerDescription
from router.worker_metrics import FigureValues
from router.workers import Worker

__all__ = ["ENDPOINTS", "MAPPING", "SERVED", "LocalAIGrpc", "check", "create"]

ENDPOINTS: Mapping[str, str] = {
    "Health": "health check of a silent worker; with a request in flight, a new connection is enough",
    "Predict": "chats and completions, one call for each choice; also streams with a JSON schema",
    "LoadModel": "with the registered `load` options: on each new connection, after another model, and after a failure",
    "PredictStream": "chats and completions in a stream, one choice after the other",
    "Embedding": "embeddings, one call for each text, or list of its tokens",
    "GenerateImage": "images and edits, one call for each image, through files that both sides see",
    "AudioTranscription": "transcriptions and translations; the node writes every format",
    "TTS": "speech, as wav",
    "SoundGeneration": "sounds, as wav",
    "TokenizeString": "tokens; also the usage of a text if the backend reports none",
    "Status": "called at registration; again later if the backend failed or has no model",
    "StoresSet": "`/stores/set`",
    "StoresDelete": "`/stores/delete`",
    "StoresGet": "`/stores/get`",
    "StoresFind": "`/stores/find`",
    "Rerank": "reranking; `top_n` is always sent",
    "GetMetrics": "speed and tokens of the last response appear in the node's metrics; the prompt in it is ignored",
}
"""How each RPC of a backend is handled."""


SERVED: Mapping[Kind, Callable[[BackendJob], Coroutine[Any, Any, Answer]]] = {
    Kind.EMBEDDING: vectors.embed,
    Kind.RERANK: vectors.rank,
    Kind.TOKENIZE: vectors.tokenize_text,
    Kind.IMAGE: media.generate,
    Kind.IMAGE_EDIT: media.edit,
    Kind.TRANSCRIPTION: media.transcribe,
    Kind.TRANSLATION: media.transcribe,
    Kind.SPEECH: media.speak,
    Kind.SOUND: media.make_sound,
    **dict.fromkeys(STORES, serve_store),
}
"""By kind other than texts, the function that answers it."""


class LocalAIGrpc:
    """Client of the LocalAI backends of this machine."""

    def __init__(self, links: Links) -> None:
        self._backend = Backend(links)
        self._texts = Texts(self._backend)
        self._verbatim = VerbatimTexts(self._backend)
        self._non_text = NonTextClient(self._backend)

    @asynccontextmanager
    async def answer(self, request: Request, candidate: Candidate) -> AsyncIterator[Answer]:
        """Send the request; entering waits for the first byte and raises a `WorkerError` until then."""
        worker = candidate.worker
        if worker is None:
            raise WorkerFailed("this dialect supports only workers on this machine")
        name = candidate.service.model
        if self._passed(request, worker, request_mapping.STATUS):
            # The status needs neither a model nor a turn.
            yield await self._verbatim.status(worker)
            return
        async with self._backend.start_request(worker, request) as errand:
            if request.kind in SERVED:
                yield await self._non_text.answer(request, name, errand)
                return
            async with AsyncExitStack() as open_:
                yield await self._begun(request, name, errand, open_)

    async def _begun(
        self, request: Request, name: str, errand: BackendRequest, open_: AsyncExitStack
    ) -> Answer:
        if (original := self._passed(request, errand.worker, *CALLS)) is not None:
            with suppress(TemplateFailed):
                return await open_.enter_async_context(self._verbatim.answer(original, errand))
        return await open_.enter_async_context(self._texts.answer(request, name, errand))

    def _passed(self, request: Request, worker: Worker, *calls: str) -> Verbatim | None:
        """Return the caller's own message if it can be passed on: a chat only to a backend whose template works."""
        original = request.verbatim
        if original is None or original.protocol != worker.dialect or original.call not in calls:
            return None
        works = request.kind is not Kind.CHAT or self._texts.template_works(worker)
        return original if works else None

    async def alive(self, worker: Worker) -> bool:
        """Ask for a backend's health; many answer that only between two texts."""
        return await self._backend.alive(worker)

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        """Return 0: no call of a backend tells it."""
        return 0

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Describe the model that a ready backend was told to load: no call of a backend tells more that routing needs."""
        if fault := await self._backend.admission_error(worker):
            return WorkerDescription("LocalAI backend", fault=fault)
        if not await self.alive(worker) or not await self._backend.is_ready(worker):
            return None
        return WorkerDescription(
            "LocalAI backend", (OfferedModel(worker.own_model, context_of(worker)),)
        )

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Ask for the speed and tokens of a backend's last answer."""
        return await self._backend.figures(worker)

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a backend by its health."""
        return await self._backend.recognise(worker)


class NonTextClient:
    """Client that asks for everything except texts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._fetcher = ImageFetcher(backend.settings)
        remove_stale_folders()

    async def answer(self, request: Request, model: str, errand: BackendRequest) -> Answer:
        """Return the whole answer; raise a `WorkerError`. All calls that it takes share one timeout."""
        settings, own_model = self._backend.settings, errand.worker.own_model
        seconds, ask = settings.total_timeout, partial(self._ask, errand)
        fetch, voices = self._fetcher.image, settings.voice_files
        job = BackendJob(request, model, own_model, ask, fetch, voices)
        try:
            async with asyncio.timeout(seconds):
                return await SERVED[request.kind](job)
        except TimeoutError as error:
            raise WorkerTimeout("answer", seconds) from error

    async def _ask(self, errand: BackendRequest, call: str, fields: Mapping[str, object]) -> Any:
        method = METHODS[call]
        message = method.request_class(**fields)
        try:
            try:
                return await errand.ask(method, message)
            except RpcFailed as failed:
                if wrong_length(failed) or not await errand.try_reload(failed):
                    raise
            return await errand.ask(method, message)
        except RpcFailed as failed:
            raise wrong_length(failed) or failed.as_error(call) from failed


def check(worker: Worker) -> None:
    """Raise `WorkerFailed` if a worker's load options are not valid for a backend."""
    model_options(worker)


def create(links: Links) -> LocalAIGrpc:
    """Create the dialect."""
    return LocalAIGrpc(links)
