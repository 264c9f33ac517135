"""Connection to a backend, with what is known of it: its channel, its load options, and the node's calls in flight there."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from registry.intake.shares import holding
from router import worker_headers
from router.answer import Answer, complete_answer
from router.canonical.values import WithOtherFields, dropped_names
from router.dialects import ALIVE_SECONDS, Recognition
from router.dialects.localai_grpc.model_load import ModelHold, ModelLoader
from router.errors import WorkerError, WorkerFailed, WorkerTimeout, WorkerUnable
from router.openai.usage import Usage
from router.peers.links import Links
from router.requests import Request
from router.rpc.call import Channels, Replies, metadata_to
from router.rpc.failures import RpcFailed, cleaned
from router.rpc.messages import LOCALAI, Method, methods_of
from router.select.fitness import estimated_tokens
from router.translate.request import parameter_headers
from router.worker_description import WorkerDescription
from router.worker_metrics import Figure, FigureValues, valid_figures
from router.workers import Worker

METHODS = methods_of(LOCALAI)
_RESULT = METHODS["TTS"].told

_UNINITIALIZED, _BUSY, _READY = 0, 1, 2


class Backend:
    """The backends of this machine, as known to one process of the node."""

    def __init__(self, links: Links) -> None:
        self.settings = links.settings
        self.deadlines = links.deadlines
        self.channels = Channels(links.settings, links.guard, links.deadlines)
        links.on_close(self.channels.close)
        self._loader = ModelLoader(self.channels, links.crew, links.settings)
        self._lingering = links.lingering
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def under_way(self, worker: Worker, request: Request) -> AsyncIterator["BackendRequest"]:
        """Have the model loaded if the worker has load options, and yield the request's errand; raise a `WorkerError`.

        The backend counts as having a request in flight. If the request is left before its end, the backend is noted as perhaps
        still working on it.
        """
        said = metadata_to(worker, request)
        with holding(self._under_way, worker.api):
            async with self._loader.held(worker, said) as hold:
                errand = BackendRequest(self.channels, self._loader, hold)
                try:
                    yield errand
                finally:
                    if errand.left:
                        self._lingering.note(worker.service, partial(self._wait_until_idle, errand))

    def _is_busy(self, api: str) -> bool:
        return api in self._under_way or self._loader.busy(api)

    async def _wait_until_idle(self, errand: "BackendRequest") -> None:
        """Return once a backend answers a health check, which many do only when they are idle."""
        health = METHODS["Health"]
        try:
            await self.channels.ask(errand.worker.api, health, health.asked(), errand.said)
        except (RpcFailed, WorkerError):
            return  # no backend works there

    async def _glance(self, worker: Worker, name: str) -> Any:
        """Make an RPC without fields; return `None` for no answer in time; raise `RpcFailed` or `WorkerFailed`."""
        method = METHODS[name]
        headers = worker_headers.read(worker)
        return await self.channels.send_probe(worker.api, method, method.asked(), headers)

    async def alive(self, worker: Worker) -> bool:
        """Ask for a backend's health; one with calls in flight may be silent, so it only has to greet a new connection."""
        if self._is_busy(worker.api):
            return await self.channels.can_connect_grpc(worker.api)
        try:
            told = await self._glance(worker, "Health")
        except WorkerFailed:
            return False
        except RpcFailed as failed:
            return failed.code != "UNAVAILABLE"
        return told is not None

    async def status(self, worker: Worker) -> Any:
        """Return a backend's report of its state and memory; raise `WorkerUnable` if there is none within `ALIVE_SECONDS`."""
        try:
            told = await self._glance(worker, "Status")
        except RpcFailed as failed:
            raise WorkerUnable(
                failed.told("the worker reports no status"), param="Status"
            ) from failed
        if told is None:
            raise WorkerUnable("the worker reports no status now", param="Status")
        return told

    async def locked(self, worker: Worker) -> str:
        """Return how a backend refuses to admit this node, empty if it does not."""
        try:
            await self._glance(worker, "Health")
        except WorkerFailed:
            return ""
        except RpcFailed as failed:
            if failed.code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                return failed.told(f"it does not admit this node: {failed.code}")
        return ""

    async def ready(self, worker: Worker) -> bool:
        """Return whether a backend has a model, or is to load one. Many backends do not report it, and count as ready."""
        try:
            told = await self._glance(worker, "Status")
        except (WorkerFailed, RpcFailed):
            return True
        if told is None or told.state in (_BUSY, _READY):
            return True
        return told.state == _UNINITIALIZED and bool(worker.load)

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Ask how fast a backend wrote its last answer. One with calls in flight would answer only after them."""
        if self._is_busy(worker.api):
            return {}
        try:
            told = await self._glance(worker, "GetMetrics")
        except WorkerFailed:
            return {}
        except RpcFailed as failed:
            return None if failed.code == "UNIMPLEMENTED" else {}
        if told is None:
            return {}
        return valid_figures(
            {
                Figure.SPEED: told.tokens_per_second,
                Figure.READ: told.prompt_tokens_processed,
                Figure.WRITTEN: told.tokens_generated,
            }
        )

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a backend by its health, or by its silence while it has calls of this node in flight."""
        asked = "Health of backend.Backend"
        try:
            told = await self._glance(worker, "Health")
        except WorkerFailed as lacks:
            return Recognition(asked, str(lacks))
        except RpcFailed as failed:
            return Recognition(
                asked, f"{failed.code}: {failed.words}" if failed.words else failed.code
            )
        described = WorkerDescription("LocalAI backend")
        if told is not None:
            return Recognition(
                asked, f"{cleaned(told.message.decode(errors='replace'))!r}", described
            )
        if self._is_busy(worker.api) and await self.channels.can_connect_grpc(worker.api):
            return Recognition(asked, "none yet: it is busy with a request of this node", described)
        return Recognition(asked, f"no answer of gRPC within {ALIVE_SECONDS:g} s")


class BackendRequest:
    """One request to a backend; `said` is the metadata of its calls, and `left` tells that a call was abandoned."""

    def __init__(self, channels: Channels, loader: ModelLoader, hold: ModelHold) -> None:
        self._channels = channels
        self._loader = loader
        self._hold = hold
        self._has_reply = False
        self.worker = hold.worker
        self.said = hold.said
        self.left = False

    async def ask(self, method: Method, message: Any) -> Any:
        """Make one RPC, and return its one answer; raise `RpcFailed`, or a `WorkerError` for a failure without a status."""
        try:
            told = await self._channels.ask(self.worker.api, method, message, self.said)
        except WorkerTimeout as error:
            self.left = self.left or error.sent
            raise
        except asyncio.CancelledError:
            self.left = True
            raise
        if isinstance(told, _RESULT) and not told.success:
            failed = RpcFailed("OK", told.message)
            failed.redact(message.SerializeToString(), self.said.values())
            raise failed
        self._has_reply = True
        return told

    @asynccontextmanager
    async def stream(self, method: Method, message: Any) -> AsyncIterator[Replies]:
        """Make an RPC whose replies are streamed; leaving early cancels it, which not every backend heeds."""
        async with self._channels.stream(self.worker.api, method, message, self.said) as replies:
            try:
                yield replies
            finally:
                self.left = self.left or not replies.over
                self._has_reply = self._has_reply or replies.began

    async def try_reload(self, failed: RpcFailed) -> bool:
        """Return whether to ask again after a failure: the backend has answered nothing yet and has reloaded its model."""
        return not self._has_reply and await self._loader.try_reload(self._hold, failed)


NAME = "LocalAI"

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class BackendJob:
    """One request to a backend.

    `model` is the name that callers know, `own_model` the backend's own. `ask` makes an RPC by its name, with the fields of its
    message, and returns the reply; it raises a `WorkerError`. `fetch` returns the image whose URL a field contains, see
    `router.http.fetch`. `voices` is the directory of the operator's voice files, if there is one.
    """

    request: Request
    model: str
    own_model: str
    ask: Callable[[str, Mapping[str, object]], Coroutine[Any, Any, Any]]
    fetch: Callable[[str, str], Coroutine[Any, Any, bytes]]
    voices: str = ""


def backend_answer(
    body: bytes,
    content_type: str = JSON,
    *,
    usage: Usage | None = None,
    unheard: Sequence[str] = (),
    heard: Sequence[str] = (),
) -> Answer:
    """Return an answer in one piece; `unheard` are parameters that had no effect, `heard` ones that few workers support."""
    answer = complete_answer(body, content_type)
    answer.usage = usage
    answer.headers = parameter_headers(unheard, heard)
    return answer


def ignored_parameters(asked: WithOtherFields, **said: object) -> list[str]:
    """Return the parameters without effect: those of `said` that the caller set, and all fields that were not read."""
    return [*sorted(name for name, value in said.items() if value), *dropped_names(asked)]


def estimate_usage(*texts: str) -> Usage:
    """Estimate the tokens of texts, which the backend does not report."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return Usage(estimated_tokens(size), 0, estimated=True)


def finite(numbers: Sequence[float]) -> list[float]:
    """Return a backend's numbers; raise `WorkerFailed` if one is not finite."""
    if not all(map(isfinite, numbers)):
        raise WorkerFailed("the worker returned an invalid number")
    return list(numbers)
