"""Dialect for the OpenAI protocol over HTTP, as spoken by llama.cpp, vLLM, Ollama and the workers of `/api/v0`.

Bytes pass through as they arrive. Three things are examined: the model's name, since the worker's may differ from the
registered one; the usage that the worker reports; and whether a status of 200 hides a failure.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from router.answer import Answer
from router.dialects import Recognition
from router.dialects.openai_http import description_parser
from router.dialects.openai_http.chats import CompletionsByChat
from router.dialects.openai_http.endpoints import (
    endpoint,
    list_and_properties_urls,
    metrics_of,
    other_endpoint,
)
from router.dialects.openai_http.json_answer import parse_json, whole_answer
from router.dialects.openai_http.worker_call import (
    Made,
    StreamWithUsage,
    WorkerCall,
    build_body,
    goal_at,
    prepare_call,
)
from router.errors import WorkerUnable
from router.http.probe import MAX_PROXY_BYTES, ProbeResult, send_probe
from router.http.reply import Reply
from router.http.service_call import call_service, describe_services, services_of
from router.large_bodies import in_thread_if_large, is_large_body
from router.openai import usage
from router.openai.large_json import SMALL_BYTES
from router.openai.usage import OptionSupport
from router.peers.links import Links
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.worker_description import WorkerDescription
from router.worker_metrics import Figure, FigureValues, parse_metrics
from router.workers import Worker

MAX_PROPERTIES_BYTES = 1024 * 1024
"""The most bytes that are read of a server's properties; most of them are a chat template of some kilobytes."""

MAX_LIST_BYTES = 1024 * 1024
"""The most bytes that are read of a list of models."""

MAX_METRICS_BYTES = 1024 * 1024
"""The most bytes that are read of metrics; vLLM's are some hundred kilobytes."""

_FIGURES: Mapping[str, Figure] = {
    "llamacpp:requests_deferred": Figure.QUEUED,
    "llamacpp:requests_processing": Figure.RUNNING,
    "vllm:num_requests_waiting": Figure.QUEUED,
    "vllm:num_requests_running": Figure.RUNNING,
    "sglang:num_queue_reqs": Figure.QUEUED,
    "sglang:num_running_reqs": Figure.RUNNING,
}
"""Figures by the names that servers have for them."""

_SHUT = frozenset({401, 403, 502, 503, 504})
_LACKING = frozenset({400, 422})


ENDPOINTS: Mapping[str, str] = {
    "POST /v1/chat/completions": "forwarded unchanged except `model`, `models` and `project`",
    "POST /v1/images/generations": "forwarded unchanged",
    "POST /v1/images/edits": "forwarded unchanged, JSON and forms",
    "GET /v1/models": "health check of a silent worker: any response counts as alive, except of a proxy that cannot reach it",
    "POST /api/v0/ai/project/register": "not called",
    "POST /api/v0/ai/project/unregister": "not called",
}
"""How each endpoint of the interface standard for models is handled."""


class OpenAIHttp:
    """Client of this machine's workers."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._pools = links.workers
        self._settings = links.settings
        self._deadlines = links.deadlines
        self._usage_option = OptionSupport()
        self._by_chat = CompletionsByChat(links)
        option = self._usage_option if links.settings.stream_usage else None
        self.prepare = partial(prepare_call, links.workers, option)
        """See `Starter.prepare`."""

    def resume(
        self, request: Request, candidate: Candidate, reply: Reply
    ) -> AbstractAsyncContextManager[Answer]:
        """Enter with the reply to what `prepare` returned, which was sent already."""
        return self.answer(request, candidate, reply=reply)

    answer_if_complete = staticmethod(whole_answer)

    def answer(
        self,
        request: Request,
        candidate: Candidate,
        prepared: "Made | None" = None,
        reply: Reply | None = None,
    ) -> AbstractAsyncContextManager[Answer]:
        """Send the request; entering waits for the first byte and raises a `WorkerError` until then.

        `prepared` is the body for the worker if it was made already, and `reply` the reply if the request was sent already.
        """
        worker, name = candidate.worker, candidate.service.model
        if worker is None or request.target:
            return call_service(self._links, request, worker)
        if prepared is None and len(request.body) > SMALL_BYTES and is_large_body(request.body):
            return self._large(request, candidate, worker)
        call = WorkerCall(self._links, worker, request, name, prepared, reply)
        if request.kind in usage.TEXT:
            telling = self._settings.stream_usage and request.stream
            text = StreamWithUsage(self._usage_option, call) if telling else call.send()
            if request.kind is Kind.CHAT:
                return text
            return self._by_chat.answer_or_chat(text, request, candidate, worker)
        if (other := other_endpoint(worker.api, request.kind)) is not None:
            return _first_served(call.send(), call.send(goal_at(other)))
        return call.send()

    @asynccontextmanager
    async def _large(
        self, request: Request, candidate: Candidate, worker: Worker
    ) -> AsyncIterator[Answer]:
        prepared = await in_thread_if_large(request.body, partial(build_body, worker, request))
        async with self.answer(request, candidate, prepared) as answer:
            yield answer

    async def alive(self, worker: Worker) -> bool:
        """Ask for the list of models; a worker that answers with any status lives, unless a proxy does in its place."""
        models, _ = list_and_properties_urls(worker.api)
        return (await send_probe(self._pools, worker, models, at_most=MAX_PROXY_BYTES)).alive

    async def slots(self, worker: Worker) -> int:
        """Ask for llama.cpp's properties: it works on that many requests at once, and silently queues the rest."""
        _, properties = list_and_properties_urls(worker.api)
        result = await send_probe(self._pools, worker, properties, at_most=MAX_PROPERTIES_BYTES)
        return description_parser.with_properties(WorkerDescription(), _parsed_body(result)).slots

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Ask for the list of models, and for llama.cpp's properties."""
        models, properties = list_and_properties_urls(worker.api)
        listed, more = await asyncio.gather(
            send_probe(self._pools, worker, models, at_most=MAX_LIST_BYTES),
            send_probe(self._pools, worker, properties, at_most=MAX_PROPERTIES_BYTES),
        )
        # A worker that is still loading its model tells more once it has.
        if not listed.has_answer or listed.comes_later:
            return None
        return description_parser.with_properties(
            description_parser.listed(_parsed_body(listed)), _parsed_body(more)
        )

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Read a worker's metrics, if it has any of the known ones."""
        url = metrics_of(worker.api)
        result = await send_probe(self._pools, worker, url, at_most=MAX_METRICS_BYTES)
        if result.status == 200:
            return parse_metrics(result.body, _FIGURES) or None
        return None if result.has_answer and not result.comes_later else {}

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a server by its list of models, or else by its endpoint for chats."""
        models, _ = list_and_properties_urls(worker.api)
        question, result = f"GET {models.path}", await send_probe(self._pools, worker, models)
        if result.status != 200 or not description_parser.is_list(parse_json(result.body)):
            finding = "200, but no list of models" if result.summary == "200" else result.summary
            if (
                result.has_answer
                and result.status not in _SHUT
                and (evidence := await self._find_chats(worker))
            ):
                return Recognition(question, f"{finding}; {evidence}", WorkerDescription())
            return Recognition(question, finding, waits=result.comes_later, silent=result.silent)
        description = await self.describe(worker) or WorkerDescription()
        count = len(description.models)
        software = f", {description.software}" if description.software else ""
        finding = f"200, {count} model{'s'[: count != 1]}{software}"
        # A modelvine node lists its services among its models.
        if description.software != "modelvine" and (more := await services_of(self._links, worker)):
            finding += f", and {describe_services(more)}"
            description = replace(description, models=(*description.models, *more))
        return Recognition(question, finding, description)

    async def _find_chats(self, worker: Worker) -> str:
        """Return the evidence that a server has chats: its OpenAPI description, or an error about an empty request's fields."""
        chats = endpoint(worker.api, Kind.CHAT)
        described = chats.with_path("/openapi.json")
        result = await send_probe(self._pools, worker, described)
        if result.status == 200 and description_parser.describes(result.json, chats.path):
            return f"{described.path} has {chats.path}"
        result = await send_probe(self._pools, worker, chats, method="POST", body=b"{}")
        if result.status in _LACKING and isinstance(result.json, dict):
            return f"empty POST {chats.path}: {result.status}"
        return ""


def _parsed_body(result: ProbeResult) -> object:
    return parse_json(result.body) if result.status == 200 else None


def create(links: Links) -> OpenAIHttp:
    """Create the dialect."""
    return OpenAIHttp(links)


@asynccontextmanager
async def _first_served(
    first: AbstractAsyncContextManager[Answer], second: AbstractAsyncContextManager[Answer]
) -> AsyncIterator[Answer]:
    """Enter the first answer, or the second if the worker does not serve the first."""
    async with AsyncExitStack() as open_:
        try:
            answer = await open_.enter_async_context(first)
        except WorkerUnable:
            answer = await open_.enter_async_context(second)
        yield answer
