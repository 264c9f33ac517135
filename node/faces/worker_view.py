"""View of what a worker reports of itself. Only what it reported: unknown values have no field.

It also shows the load of replicas, for people and programs: measured for this node's, as reported for those of other nodes.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from node.agent import Reports
from node.faces import Context
from registry.members.load import REPEAT
from registry.records import Ability, Load, PeerId, Service, input_names, output_names
from router.select.candidates import Candidate
from router.worker_description import OfferedModel, WorkerDescription
from router.workers import Worker


def loads_of_node(context: Context, node: PeerId) -> list[dict[str, Any]]:
    """Return the known load of a node's replicas: current for our own node, by the last reports for another.

    Reports of replicas that its record no longer has are left out.
    """
    if node == context.peer:
        return [
            _load_row(service, load, 0.0) | _learned(context, service)
            for service, load in context.aggregate.busy_loads().items()
        ]
    registry, in_flight = context.registry, context.router.in_flight
    held, repeated = registry.catalog.held.get(node), REPEAT * registry.replica.members.rarity
    offered = held.record.services if held else ()
    return [
        _load_row(service, report.current_load(in_flight[node, service], repeated), report.age)
        for service, report in context.router.reports.of_node(node, time.monotonic())
        if service in offered
    ]


def load_of_candidate(context: Context, candidate: Candidate) -> dict[str, Any] | None:
    """Return the load of one candidate, `None` where it is unknown."""
    if candidate.worker is not None:
        load = context.loads.load_of(candidate.worker)
        return _shown(load, 0.0) | _learned(context, candidate.service)
    report = candidate.report
    return None if report is None else _shown(report.load, report.age)


def _load_row(service: Service, load: Load, age: float) -> dict[str, Any]:
    service_fields = {"project": service.project, "model": service.model, "cid": service.cid}
    return service_fields | {"type": int(service.type)} | _shown(load, age)


def _learned(context: Context, service: Service) -> dict[str, Any]:
    """Return whether the slots of a worker of this node were learnt, none having been registered."""
    return {"learned": context.router.has_learnt_limit(service)}


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
"""The most model names that are shown of one worker, and the most warnings in one answer."""


def learned_rows(workers: Iterable[Worker], descriptions: Reports) -> dict[str, Any]:
    """Return a field `learned` with a row for each worker that reported something; no field where none did."""
    rows = [row for worker in workers if (row := _row(worker, descriptions.get(worker)))]
    return {"learned": rows} if rows else {}


def warnings_of(silent: Mapping[Worker, str]) -> dict[str, Any]:
    """Return a field `warnings` with a sentence for each worker that does not answer, and why; no field where all do."""
    consequence = "it is registered anyway, and callers get 503 until it answers"
    warnings = [
        f"no answer from {worker.api.partition('?')[0]} for {worker.service.project}/{worker.service.model}"
        f"{reason and f': {reason}'}; {consequence}"
        for worker, reason in silent.items()
    ][:MAX_NAMES]
    return {"warnings": warnings} if warnings else {}


def _row(worker: Worker, description: WorkerDescription | None) -> dict[str, Any]:
    if description is None:
        return {}
    learned = {**worker_fields(description), **model_fields(description.model_of(worker))}
    learned.pop("name", None)
    if names := [*dict.fromkeys(model.name for model in description.models)][:MAX_NAMES]:
        learned["models"] = names
    service = worker.service
    name = {"project": service.project, "model": service.model, "cid": service.cid}
    return {**name, **learned} if learned else {}


def worker_fields(description: WorkerDescription) -> dict[str, Any]:
    """Return the fields that hold for all models of a worker."""
    fields = {
        "software": description.software,
        "slots": description.slots,
        "max_output": description.output,
        "fault": description.fault,
    }
    return {name: value for name, value in fields.items() if value}


def model_fields(offered: OfferedModel) -> dict[str, Any]:
    """Return the fields that a worker reports of one model."""
    context = {"context": offered.context} if offered.context else {}
    kind = {} if offered.type is None else {"type": int(offered.type)}
    return {"name": offered.name, **kind, **context, **abilities(offered.abilities)}


def abilities(bits: int) -> dict[str, Any]:
    """Return the inputs and outputs of a model, in the terms that clients of `/v1/models` know."""
    fields: dict[str, Any] = {
        "input_modalities": input_names(bits),
        "output_modalities": output_names(bits),
    }
    fields = {name: names for name, names in fields.items() if names}
    return {**fields, **({"tools": True} if bits & Ability.TOOLS else {})}
