"""View of what workers report about themselves: only what they reported."""

from node.faces.worker_view import MAX_NAMES, abilities, learned_rows
from registry.records import Ability, Service
from router.worker_description import OfferedModel, WorkerDescription
from router.workers import Worker

WORKER = Worker(Service("p", "m", "c"), "http://w")


def test_a_worker_that_reported_nothing_has_no_row() -> None:
    assert learned_rows([WORKER], {}) == {}
    assert learned_rows([WORKER], {WORKER: WorkerDescription()}) == {}


def test_a_row_holds_what_was_reported_and_nothing_else() -> None:
    description = WorkerDescription("s", (OfferedModel("m", 8),))
    assert learned_rows([WORKER], {WORKER: description}) == {
        "learned": [
            {
                "project": "p",
                "model": "m",
                "cid": "c",
                "software": "s",
                "context": 8,
                "models": ["m"],
            }
        ]
    }


def test_of_many_models_the_first_are_named() -> None:
    description = WorkerDescription(
        models=tuple(OfferedModel(str(n)) for n in range(2 * MAX_NAMES))
    )
    (row,) = learned_rows([WORKER], {WORKER: description})["learned"]
    assert len(row["models"]) == MAX_NAMES


def test_abilities_have_the_field_names_of_model_lists() -> None:
    assert abilities(0) == {}
    assert abilities(Ability.TEXT_IN | Ability.IMAGE_OUT | Ability.TOOLS) == {
        "input_modalities": ["text"],
        "output_modalities": ["image"],
        "tools": True,
    }
