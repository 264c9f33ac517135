"""Load of replicas, for people and machines: what this node measures, and what others said of theirs."""

import time
from typing import Any

from node.faces import Context
from registry.records import Load, PeerId, Service
from router.select.candidates import Candidate


def of_node(context: Context, node: PeerId) -> list[dict[str, Any]]:
    """Return the load of a node's replicas as far as it is known: our own now, another's as it was reported."""
    if node == context.peer:
        return [
            _row(service, load, 0.0) | _learned(context, service)
            for service, load in context.whole.busy().items()
        ]
    reports = context.router.reports.of_node(node, time.monotonic())
    return [_row(service, said.load, said.age) for service, said in reports]


def of_candidate(context: Context, candidate: Candidate) -> dict[str, Any] | None:
    """Return the load of one candidate, `None` where nothing is known of it."""
    if candidate.worker is not None:
        load = context.load_of(candidate.worker)
        return _shown(load, 0.0) | _learned(context, candidate.service)
    said = candidate.report
    return None if said is None else _shown(said.load, said.age)


def _row(service: Service, load: Load, age: float) -> dict[str, Any]:
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
