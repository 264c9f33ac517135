"""State of a model: whether it is served, TGI's `/info` of it, and the load of its replicas."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from node import __version__
from node.faces import Serving
from node.faces.tgi.request_mapping import MAX_BEST_OF, MAX_STOPS
from registry.records import Load, Service
from router.errors import UnknownModel, WorkerFailed
from router.requests import Kind, Request
from router.select.candidates import Candidate, Reason
from router.worker_description import WorkerDescription

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_THERE = frozenset({Reason.FULL, Reason.TOLD})
_NOT_MEANT = frozenset({Reason.PINNED, Reason.HOP, Reason.OTHER_TYPE, Reason.LEFT})


@dataclass(frozen=True, slots=True)
class Served:
    """The replicas of a model: those available now, and all that are known."""

    now: tuple[Candidate, ...]
    known: tuple[Candidate, ...]


def served(context: Serving, id_: str, model: str) -> Served:
    """Return the replicas that serve completions of a model; busy ones count as available."""
    request = Request(id_, Kind.COMPLETION, model, b"{}", "application/json")
    found = context.router.explain(request)
    busy = [left.candidate for left in found.excluded if left.reason in _THERE]
    known = [left.candidate for left in found.excluded if left.reason not in _NOT_MEANT]
    return Served((*found.ordered, *busy), (*found.ordered, *known))


async def told(context: Serving, found: Served) -> WorkerDescription:
    """Return the description of a worker of this machine, an empty one where there is none; other nodes' are in their records."""
    for candidate in found.known:
        if candidate.worker is not None:
            with suppress(WorkerFailed):
                return await context.router.describe(candidate.worker) or WorkerDescription()
    return WorkerDescription()


def info(
    context: Serving, name: str, found: Served, own: WorkerDescription
) -> Mapping[str, object]:
    """Return TGI's `Info`; `own` is the description of a worker here. Unknown numbers are 0. Raise `UnknownModel`."""
    if not found.known:
        raise UnknownModel(name)
    services: list[Service] = [candidate.service for candidate in found.known]
    tokens = max(service.context for service in services)
    limits = own.limits
    # At least one token is left for the output.
    read = min(limits.get("max_input_tokens", tokens), max(0, tokens - max(own.output, 1)))
    return {
        "model_id": services[0].model,
        "model_sha": None,
        "model_pipeline_tag": None,
        "max_concurrent_requests": max(sum(c.slots for c in found.known), own.slots),
        "max_best_of": limits.get("max_best_of", MAX_BEST_OF),
        "max_stop_sequences": min(limits.get("max_stop_sequences", MAX_STOPS), MAX_STOPS),
        "max_input_tokens": read,
        "max_total_tokens": tokens,
        "validation_workers": limits.get("validation_workers", context.settings.node.workers),
        "max_client_batch_size": limits.get("max_client_batch_size", 1),
        "router": "modelvine",
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


def metrics(context: Serving, found: Served) -> bytes:
    """Return two of TGI's series, summed over all replicas of a model, as far as their nodes have reported."""
    loads = [_load(context, candidate) for candidate in found.now]
    return b"".join(
        (
            _gauge("tgi_queue_size", sum(load.queued for load in loads)),
            _gauge("tgi_batch_current_size", sum(load.in_flight for load in loads)),
        )
    )


def _load(context: Serving, candidate: Candidate) -> Load:
    if candidate.worker is not None:
        return context.loads.load_of(candidate.worker)
    if candidate.report is not None:
        return candidate.report.load
    return Load(in_flight=candidate.in_flight)


def _gauge(name: str, value: int) -> bytes:
    return f"# TYPE {name} gauge\n{name} {value}\n".encode()
