"""Plan of what to register and to withdraw after a look at a worker."""

from collections.abc import Mapping
from typing import Any

import pytest

from node.cli.console.attach_plan import (
    FIRST_SERVICE,
    GONE_AFTER,
    PlanStep,
    Registered,
    port_of,
    rows_of,
    shown_name,
)
from registry.records import SERVICE_TYPES


def found(*models: str | Mapping[str, Any]) -> dict[str, Any]:
    offered = [{"name": model} if isinstance(model, str) else model for model in models]
    return {"dialect": "openai_http", "api": "http://w", "models": offered}


def take(attached: Registered, step: PlanStep) -> tuple[list[str], list[str]]:
    """Carry out a step; return the names that were registered and withdrawn."""
    for row in step.register:
        attached.registered(row)
    for name in step.withdraw:
        attached.withdrawn(name)
    return [str(row["model"]) for row in step.register], list(step.withdraw)


def test_a_model_that_is_seen_is_registered_once() -> None:
    attached = Registered()
    assert take(attached, attached.seen(found("a", "b"))) == (["a", "b"], [])
    assert take(attached, attached.seen(found("b", "a"))) == ([], [])
    assert attached.names == ("a", "b")


def test_models_that_come_and_go_are_registered_and_withdrawn() -> None:
    attached = Registered()
    take(attached, attached.seen(found("a", "b")))
    assert take(attached, attached.seen(found("b", "c"))) == (["c"], ["a"])


def test_a_model_whose_description_changes_is_registered_again() -> None:
    attached = Registered()
    take(attached, attached.seen(found({"name": "a", "context": 4096})))
    assert take(attached, attached.seen(found({"name": "a", "context": 512}))) == (["a"], [])


def test_a_worker_that_misses_one_look_is_not_gone() -> None:
    attached = Registered()
    take(attached, attached.seen(found("a")))
    steps = [attached.seen(None) for _ in range(GONE_AFTER - 1)]
    assert steps == [PlanStep()] * (GONE_AFTER - 1)
    assert attached.seen(found("a")) == PlanStep()


def test_models_are_withdrawn_when_their_worker_is_gone_and_registered_when_it_is_back() -> None:
    attached = Registered()
    take(attached, attached.seen(found("a")))
    step = [attached.seen(None) for _ in range(GONE_AFTER)][-1]
    assert (step.gone, take(attached, step)) == (True, ([], ["a"]))
    assert attached.seen(None) == PlanStep()
    back = attached.seen(found("a"))
    assert (back.back, take(attached, back)) == (True, (["a"], []))


def test_a_name_has_one_registration_for_each_type() -> None:
    attached = Registered()
    draw, edit = {"name": "a", "type": 1}, {"name": "a", "type": 2, "api": "http://w/edit"}
    assert take(attached, attached.seen(found(draw, edit))) == (["a", "a"], [])
    assert attached.names == ("a",)
    assert attached.seen(found(edit, draw)) == PlanStep()
    step = attached.seen(found(edit))
    # All registrations of the name are withdrawn, and those that are left are made again.
    assert step.withdraw == ("a",)
    assert [row["api"] for row in step.register] == ["http://w/edit"]


def test_a_service_is_gone_only_after_several_missed_looks_in_a_row() -> None:
    attached = Registered()
    both = found({"name": "services", "type": 9}, {"name": "services", "type": 13})
    service = found({"name": "services", "type": 9})
    take(attached, attached.seen(both))
    for _ in range(2):
        steps = [attached.seen(service) for _ in range(GONE_AFTER - 1)]
        assert [*steps, attached.seen(both)] == [PlanStep()] * GONE_AFTER
    step = [attached.seen(service) for _ in range(GONE_AFTER)][-1]
    assert take(attached, step) == (["services"], ["services"])
    assert step.register[0]["said"] == {"type": 9}


def test_a_list_may_give_the_url_and_the_project_of_each_model() -> None:
    model = {"name": "a", "api": "http://w/draw", "project": "team"}
    (one, two) = rows_of(found(model, "b"), [])
    assert (one["api"], one["project"], one["said"]) == ("http://w/draw", "team", {})
    assert (two["api"], "project" in two) == ("http://w", False)
    attached = Registered()
    take(attached, attached.seen(found(model, "b")))
    assert [attached.project(name) for name in ("a", "b", "c")] == ["team", "", ""]


def test_a_step_that_was_not_carried_out_is_planned_again() -> None:
    attached = Registered()
    assert attached.seen(found("a")).register == attached.seen(found("a")).register != ()
    take(attached, attached.seen(found("a")))
    for _ in range(GONE_AFTER):
        attached.seen(None)
    assert attached.seen(None) == PlanStep((), ("a",))


def test_only_the_requested_models_are_registered() -> None:
    assert [row["model"] for row in rows_of(found("a", "b", "c"), ["b"])] == ["b"]
    assert rows_of(found("a"), ["x"]) == []


def test_a_worker_that_names_no_model_has_the_requested_ones() -> None:
    assert [row["model"] for row in rows_of(found(), ["own"])] == ["own"]
    assert rows_of(found(), []) == []


def test_a_model_file_is_registered_by_its_name_and_requested_by_its_path() -> None:
    (row,) = rows_of(found("/models/Tiny-Q4.gguf"), [])
    assert (row["model"], row["worker_model"]) == ("Tiny-Q4", "/models/Tiny-Q4.gguf")
    assert [r["model"] for r in rows_of(found("/m/a.gguf"), ["a"])] == ["a"]
    assert shown_name("org/model:latest") == "org/model:latest"
    assert shown_name(r"C:\m\x.gguf") == "x"
    assert shown_name(".gguf") == ".gguf"


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:8080/v1", "8080"),
        ("127.0.0.1:50051", "50051"),
        ("grpc+localai://[::1]:9", "9"),
        ("https://box", ""),
        ("http://127.0.0.1:99999", ""),
        ("", ""),
    ],
)
def test_replicas_are_told_apart_by_their_ports(url: str, port: str) -> None:
    assert port_of(url) == port


def test_models_can_be_named_where_a_worker_lists_only_services() -> None:
    assert min(SERVICE_TYPES) == FIRST_SERVICE
    services = found({"name": "batch", "type": 9}, {"name": "vectors", "type": 13})
    assert [row["model"] for row in rows_of(services, ())] == ["batch", "vectors"]
    assert [row["model"] for row in rows_of(services, ("llama", "batch"))] == ["batch", "llama"]
    both = found("tiny", {"name": "batch", "type": 9})
    assert [row["model"] for row in rows_of(both, ("llama", "batch"))] == ["batch"]
