"""View of what a worker says of itself. Only what it said: no field stands for what nobody knows.

Load of replicas, for people and machines: what this node measures, and what others said of theirs.
"""

import time
from collections.abc import Iterable
from typing import Any

from node.agent import Told
from node.faces import Context
from registry.records import Ability, Load, PeerId, Service, given, taken
from router.select.candidates import Candidate
from router.worker_description import Described, Offered
from router.workers import Worker


def of_node(context: Context, node: PeerId) -> list[dict[str, Any]]:
    """Return the load of a node's replicas as far as it is known: our own now, another's as it was reported."""
    if node == context.peer:
        return [
            _load_row(service, load, 0.0) | _learned(context, service)
            for service, load in context.whole.busy().items()
        ]
    reports = context.router.reports.of_node(node, time.monotonic())
    return [_load_row(service, said.load, said.age) for service, said in reports]


def of_candidate(context: Context, candidate: Candidate) -> dict[str, Any] | None:
    """Return the load of one candidate, `None` where nothing is known of it."""
    if candidate.worker is not None:
        load = context.load_of(candidate.worker)
        return _shown(load, 0.0) | _learned(context, candidate.service)
    said = candidate.report
    return None if said is None else _shown(said.load, said.age)


def _load_row(service: Service, load: Load, age: float) -> dict[str, Any]:
    named = {"project": service.project, "model": service.model, "cid": service.cid}
    return named | {"type": int(service.type)} | _shown(load, age)


def _learned(context: Context, service: Service) -> dict[str, Any]:
    """Say whether the slots of a worker of ours were learnt: nobody registered any."""
    return {"learned": context.router.bounded(service)}


def _shown(load: Load, age: float) -> dict[str, Any]:
    return {
        "in_flight": load.in_flight,
        "queued": load.queued,
        "slots": load.slots or None,
        "learned": False,
        "rate": round(load.rate, 1),
        "first_byte": None if load.first is None else round(load.first, 3),
        "age": round(age, 3),
    }


MAX_NAMES = 100
"""The most names of models that are told of one worker."""


def rows_of(workers: Iterable[Worker], told: Told) -> dict[str, Any]:
    """Return a field `learned` with a row for each worker that said something, no field where none did."""
    rows = [row for worker in workers if (row := _row(worker, told.get(worker)))]
    return {"learned": rows} if rows else {}


def warned(silent: Iterable[Worker]) -> dict[str, Any]:
    """Return a field `warnings` with a sentence for each worker that answers nothing, no field where there is none."""
    said = "; it is registered anyway, and callers get 503 until it answers"
    found = [
        f"nothing answers at {worker.api.partition('?')[0]} for {worker.service.project}/{worker.service.model}{said}"
        for worker in silent
    ][:MAX_NAMES]
    return {"warnings": found} if found else {}


def _row(worker: Worker, said: Described | None) -> dict[str, Any]:
    if said is None:
        return {}
    found = {**of_worker(said), **of_model(said.of(worker))}
    found.pop("name", None)
    if names := [*dict.fromkeys(model.name for model in said.models)][:MAX_NAMES]:
        found["models"] = names
    service = worker.service
    name = {"project": service.project, "model": service.model, "cid": service.cid}
    return {**name, **found} if found else {}


def of_worker(said: Described) -> dict[str, Any]:
    """Return what holds for all its models."""
    found = {
        "software": said.software,
        "slots": said.slots,
        "max_output": said.output,
        "fault": said.fault,
    }
    return {name: value for name, value in found.items() if value}


def of_model(said: Offered) -> dict[str, Any]:
    """Return what it says of one model."""
    context = {"context": said.context} if said.context else {}
    kind = {} if said.type is None else {"type": int(said.type)}
    return {"name": said.name, **kind, **context, **abilities(said.abilities)}


def abilities(known: int) -> dict[str, Any]:
    """Return what a model takes and gives, in the words that clients of `/v1/models` know."""
    found: dict[str, Any] = {"input_modalities": taken(known), "output_modalities": given(known)}
    found = {name: words for name, words in found.items() if words}
    return {**found, **({"tools": True} if known & Ability.TOOLS else {})}
