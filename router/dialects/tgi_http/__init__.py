"""Dialect for Hugging Face's Text Generation Inference: completions over its native interface, chats over its own `/v1`.

The native stream has no `[DONE]`, and reports errors as events after a status of 200. TGI returns stop strings with the text,
has one choice for each request, and refuses values that change nothing (`top_p` 1, no tokens) with 422. The dialect corrects
all of this.
"""

from collections.abc import Mapping

from router.dialects import Recognition
from router.dialects.tgi_http import answer_parser, request_mapping
from router.http.probe import ProbeResult, send_probe
from router.http.translator import CallMapping, ProtocolMapping, Translator
from router.peers.links import Links
from router.requests import Kind
from router.worker_description import (
    MOST_SLOTS,
    OfferedModel,
    WorkerDescription,
    count_of,
    first_count,
    models_of,
    text_of,
)
from router.worker_metrics import Figure, FigureValues, parse_metrics
from router.workers import Worker

MAX_PROPERTIES_BYTES = 64 * 1024
MAX_METRICS_BYTES = 512 * 1024
"""The most bytes that are read of metrics; a server's own are some tens of kilobytes."""

MAX_NAME = 256
_FIGURES: Mapping[str, Figure] = {
    "tgi_queue_size": Figure.QUEUED,
    "tgi_batch_current_size": Figure.RUNNING,
}
_LIMITS = ("max_total_tokens", "max_best_of")
"""Fields of `/info` that only TGI has: other servers with a model in `/info` compute embeddings and generate no tokens."""

_TOLD_ON = (
    "max_best_of", "max_client_batch_size", "max_stop_sequences", "validation_workers",
)  # fmt: skip
"""Limits that are reported to clients of TGI unchanged."""

ENDPOINTS: Mapping[str, str] = {
    "POST /": "not used: same as `/generate` and `/generate_stream`",
    "POST /generate": "completions, one request for each choice",
    "POST /generate_stream": "completions in a stream",
    "POST /v1/chat/completions": "chats, streams too; with tools requested without streaming, then streamed by the node",
    "POST /v1/completions": "completions with a `suffix` only, because it does not mark special tokens",
    "POST /tokenize": "tokens; missing usage is estimated without it",
    "GET /health": "health check of a silent worker; 502 to 504 mean that its model is down",
    "GET /info": "`max_concurrent_requests` limits concurrent requests, `max_total_tokens` is the context",
    "GET /metrics": "`tgi_queue_size` and `tgi_batch_current_size` appear in the node's metrics",
}
"""How each endpoint of TGI is handled."""

MAPPING = ProtocolMapping(
    name="TGI",
    kinds=frozenset({Kind.CHAT, Kind.COMPLETION}),
    mapped=request_mapping.mapped,
    tools=True,
    schemas=True,
    shaping=frozenset({request_mapping.REGEX, request_mapping.SUFFIX}),
    paths=(
        request_mapping.CHAT,
        request_mapping.INFILL,
        request_mapping.STREAM,
        request_mapping.WHOLE,
        answer_parser.TOKENIZE_PATH,
        "v1",
    ),
    part=answer_parser.part,
    whole=answer_parser.whole,
    others={
        Kind.TOKENIZE: CallMapping(answer_parser.map_token_request, answer_parser.read_token_answer)
    },
    passing=answer_parser.PASSING,
    beside=request_mapping.beside,
)


class TgiHttp(Translator):
    """Client of the TGI servers of this machine."""

    def __init__(self, links: Links) -> None:
        super().__init__(links, MAPPING)

    async def alive(self, worker: Worker) -> bool:
        """Ask for the server's health; 502 to 504 mean that the model behind it is down, a status for being busy does not."""
        result = await send_probe(self._pools, worker, self.url(worker, "health"), at_most=0)
        return result.has_answer and not result.comes_later

    async def slots(self, worker: Worker) -> int:
        """Ask how many concurrent requests the server takes before it refuses more."""
        described = await self.describe(worker)
        return described.slots if described else 0

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Ask for `/info`."""
        url = self.url(worker, "info")
        result = await send_probe(self._pools, worker, url, at_most=MAX_PROPERTIES_BYTES)
        if not result.has_answer or result.comes_later:
            return None
        return read_info(_properties(result)) if result.status == 200 else WorkerDescription()

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Read a server's metrics."""
        url = self.url(worker, "metrics")
        result = await send_probe(self._pools, worker, url, at_most=MAX_METRICS_BYTES)
        if result.status == 200:
            return parse_metrics(result.body, _FIGURES)
        return None if result.has_answer and not result.comes_later else {}

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a server by its `/info`: a model and TGI's own limits."""
        url = self.url(worker, "info")
        question, result = f"GET {url.path}", await send_probe(self._pools, worker, url)
        if result.status != 200:
            return Recognition(question, result.summary, silent=result.silent)
        info = _properties(result)
        if "model_id" not in info or not any(name in info for name in _LIMITS):
            return Recognition(question, "200, but no model_id with TGI's limits")
        software = read_info(info).software
        return Recognition(
            question, f"200, {software} with {text_of(info['model_id'])}", read_info(info)
        )


def create(links: Links) -> TgiHttp:
    """Create the dialect."""
    return TgiHttp(links)


def _properties(result: ProbeResult) -> Mapping[str, object]:
    value = result.json
    return value if isinstance(value, dict) else {}


def read_info(info: Mapping[str, object]) -> WorkerDescription:
    """Read an answer of `/info`."""
    version = text_of(info.get("version"))
    context = count_of(info.get("max_total_tokens"))
    # `max_input_length` is the older name. The answer gets what the input leaves of the context.
    read = first_count(info, "max_input_tokens", "max_input_length")
    return WorkerDescription(
        software=f"TGI {version}".strip(),
        models=models_of([OfferedModel(text_of(info.get("model_id"), MAX_NAME), context)]),
        slots=count_of(info.get("max_concurrent_requests"), MOST_SLOTS),
        output=max(0, context - read) if read else 0,
        limits={name: count for name in _TOLD_ON if (count := count_of(info.get(name)))}
        | ({"max_input_tokens": read} if 0 < read < context else {}),
    )
