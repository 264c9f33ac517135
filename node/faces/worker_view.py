"""View of what a worker says of itself. Only what it said: no field stands for what nobody knows."""

from collections.abc import Iterable
from typing import Any

from node.agent import Told
from registry.records import Ability, given, taken
from router.worker_description import Described, Offered
from router.workers import Worker

MAX_NAMES = 100
"""The most names of models that are told of one worker."""


def rows_of(workers: Iterable[Worker], told: Told) -> dict[str, Any]:
    """Return a field `learned` with a row for each worker that said something, no field where none did."""
    rows = [row for worker in workers if (row := _row(worker, told.get(worker)))]
    return {"learned": rows} if rows else {}


def warned(silent: Iterable[Worker]) -> dict[str, Any]:
    """Return a field `warnings` with a sentence for each worker that answers nothing, no field where there is none."""
    said = "; it is registered all the same, and callers get 503 until it does"
    found = [
        f"nobody answers at {worker.api.partition('?')[0]} for {worker.service.project}/{worker.service.model}{said}"
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
