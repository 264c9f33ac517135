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
_RESULT = METHODS["TTS"].reply_class

_UNINITIALIZED, _BUSY, _READY = 0, 1, 2


class Backend:
    """The backends of this machine, as known to one process of the node."""

    def __init__(self, links: Links) -> None:
        self.settings = links.settings
        self.deadlines = links.deadlines
        self.channels = Channels(links.settings, links.guard, links.deadlines)
        links.on_close(self.channels.close)
        self._loader = ModelLoader(self.channels, links.tasks, links.settings)
        self._lingering = links.lingering
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def start_request(
        self, worker: Worker, request: Request
    ) -> AsyncIterator["BackendRequest"]:
        """Have the model loaded if the worker has load options, and yield the request's errand; raise a `WorkerError`.

        The backend counts as having a request in flight. If the request is left before its end, the backend is noted as perhaps
        still working on it.
        """
        metadata = metadata_to(worker, request)
        with holding(self._under_way, worker.api):
            async with self._loader.hold_model(worker, metadata) as hold:
                errand = BackendRequest(self.channels, self._loader, hold)
                try:
                    yield errand
                finally:
                    if errand.abandoned:
                        self._lingering.note_cancelled(
                            worker.service, partial(self._wait_until_idle, errand)
                        )

    def _is_busy(self, api: str) -> bool:
        return api in self._under_way or self._loader.is_loading(api)

    async def _wait_until_idle(self, errand: "BackendRequest") -> None:
        """Return once a backend answers a health check, which many do only when they are idle."""
        health = METHODS["Health"]
        try:
            await self.channels.ask(
                errand.worker.api, health, health.request_class(), errand.metadata
            )
        except (RpcFailed, WorkerError):
            return  # no backend works there

    async def _glance(self, worker: Worker, name: str) -> Any:
        """Make an RPC without fields; return `None` for no answer in time; raise `RpcFailed` or `WorkerFailed`."""
        method = METHODS[name]
        headers = worker_headers.read(worker)
        return await self.channels.send_probe(worker.api, method, method.request_class(), headers)

    async def alive(self, worker: Worker) -> bool:
        """Ask for a backend's health; one with calls in flight may be silent, so it only has to greet a new connection."""
        if self._is_busy(worker.api):
            return await self.channels.can_connect_grpc(worker.api)
        try:
            report = await self._glance(worker, "Health")
        except WorkerFailed:
            return False
        except RpcFailed as failed:
            return failed.code != "UNAVAILABLE"
        return report is not None

    async def status(self, worker: Worker) -> Any:
        """Return a backend's report of its state and memory; raise `WorkerUnable` if there is none within `ALIVE_SECONDS`."""
        try:
            report = await self._glance(worker, "Status")
        except RpcFailed as failed:
            raise WorkerUnable(
                failed.describe("the worker reports no status"), param="Status"
            ) from failed
        if report is None:
            raise WorkerUnable("the worker reports no status now", param="Status")
        return report

    async def admission_error(self, worker: Worker) -> str:
        """Return how a backend refuses to admit this node, empty if it does not."""
        try:
            await self._glance(worker, "Health")
        except WorkerFailed:
            return ""
        except RpcFailed as failed:
            if failed.code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                return failed.describe(f"it does not admit this node: {failed.code}")
        return ""

    async def is_ready(self, worker: Worker) -> bool:
        """Return whether a backend has a model, or is to load one. Many backends do not report it, and count as ready."""
        try:
            report = await self._glance(worker, "Status")
        except (WorkerFailed, RpcFailed):
            return True
        if report is None or report.state in (_BUSY, _READY):
            return True
        return report.state == _UNINITIALIZED and bool(worker.load)

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Ask how fast a backend wrote its last answer. One with calls in flight would answer only after them."""
        if self._is_busy(worker.api):
            return {}
        try:
            report = await self._glance(worker, "GetMetrics")
        except WorkerFailed:
            return {}
        except RpcFailed as failed:
            return None if failed.code == "UNIMPLEMENTED" else {}
        if report is None:
            return {}
        return valid_figures(
            {
                Figure.SPEED: report.tokens_per_second,
                Figure.READ: report.prompt_tokens_processed,
                Figure.WRITTEN: report.tokens_generated,
            }
        )

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a backend by its health, or by its silence while it has calls of this node in flight."""
        question = "Health of backend.Backend"
        try:
            report = await self._glance(worker, "Health")
        except WorkerFailed as lacks:
            return Recognition(question, str(lacks))
        except RpcFailed as failed:
            return Recognition(
                question, f"{failed.code}: {failed.words}" if failed.words else failed.code
            )
        described = WorkerDescription("LocalAI backend")
        if report is not None:
            return Recognition(
                question, f"{cleaned(report.message.decode(errors='replace'))!r}", described
            )
        if self._is_busy(worker.api) and await self.channels.can_connect_grpc(worker.api):
            return Recognition(
                question, "none yet: it is busy with a request of this node", described
            )
        return Recognition(question, f"no answer of gRPC within {ALIVE_SECONDS:g} s")


class BackendRequest:
    """One request to a backend; `metadata` is the metadata of its calls, and `abandoned` tells that a call was abandoned."""

    def __init__(self, channels: Channels, loader: ModelLoader, hold: ModelHold) -> None:
        self._channels = channels
        self._loader = loader
        self._hold = hold
        self._has_reply = False
        self.worker = hold.worker
        self.metadata = hold.metadata
        self.abandoned = False

    async def ask(self, method: Method, message: Any) -> Any:
        """Make one RPC, and return its one answer; raise `RpcFailed`, or a `WorkerError` for a failure without a status."""
        try:
            reply = await self._channels.ask(self.worker.api, method, message, self.metadata)
        except WorkerTimeout as error:
            self.abandoned = self.abandoned or error.sent
            raise
        except asyncio.CancelledError:
            self.abandoned = True
            raise
        if isinstance(reply, _RESULT) and not reply.success:
            failed = RpcFailed("OK", reply.message)
            failed.redact(message.SerializeToString(), self.metadata.values())
            raise failed
        self._has_reply = True
        return reply

    @asynccontextmanager
    async def stream(self, method: Method, message: Any) -> AsyncIterator[Replies]:
        """Make an RPC whose replies are streamed; leaving early cancels it, which not every backend heeds."""
        async with self._channels.stream(
            self.worker.api, method, message, self.metadata
        ) as replies:
            try:
                yield replies
            finally:
                self.abandoned = self.abandoned or not replies.has_ended
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


def ignored_parameters(request: WithOtherFields, **parameters: object) -> list[str]:
    """Return the parameters without effect: those of `metadata` that the caller set, and all fields that were not read."""
    return [*sorted(name for name, value in parameters.items() if value), *dropped_names(request)]


def estimate_usage(*texts: str) -> Usage:
    """Estimate the tokens of texts, which the backend does not report."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return Usage(estimated_tokens(size), 0, estimated=True)


def finite(numbers: Sequence[float]) -> list[float]:
    """Return a backend's numbers; raise `WorkerFailed` if one is not finite."""
    if not all(map(isfinite, numbers)):
        raise WorkerFailed("the worker returned an invalid number")
    return list(numbers)
