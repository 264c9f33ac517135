"""Laws of a worker's description of itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Ability, ModelType, Service
from registry.wire import MAX_ABILITIES, MAX_CONTEXT
from router.worker_description import (
    MAX_MODELS,
    MAX_SOFTWARE_CHARACTERS,
    OfferedModel,
    WorkerDescription,
    abilities_of,
    complete_worker,
    count_of,
    models_of,
    text_of,
)
from router.workers import Worker


def worker(model: str = "m", *, own: str = "", context: int = 0) -> Worker:
    return Worker(Service("p", model, context=context), "http://w", model=own)


def test_a_model_is_found_by_the_workers_own_name_for_it() -> None:
    description = WorkerDescription(models=(OfferedModel("a", 1), OfferedModel("b:latest", 2)))
    assert description.model_of(worker("x", own="a")).context == 1
    assert description.model_of(worker("b")).context == 2
    assert description.model_of(worker("c")) == OfferedModel("c")


def test_a_worker_with_a_single_model_has_it_under_any_name() -> None:
    assert (
        WorkerDescription(models=(OfferedModel("file.gguf", 7),)).model_of(worker("tiny")).context
        == 7
    )
    assert WorkerDescription().model_of(worker("tiny")) == OfferedModel("tiny")


def test_a_description_does_not_override_the_operators_settings() -> None:
    offered = OfferedModel("m", 4096, Ability.TEXT_IN)
    assert complete_worker(worker(), offered).service == Service(
        "p", "m", context=4096, abilities=1
    )
    assert complete_worker(worker(context=100), offered).service.context == 100
    mute = worker()
    assert complete_worker(mute, OfferedModel("m")) is mute


def test_a_verbatim_protocol_bit_does_not_count_as_an_operators_setting() -> None:
    in_tgis = replace(worker(), service=Service("p", "m", abilities=Ability.TGI))
    offered = OfferedModel("m", abilities=Ability.TEXT_IN)
    assert complete_worker(in_tgis, offered).service.abilities == Ability.TGI | Ability.TEXT_IN
    configured = replace(
        worker(), service=Service("p", "m", abilities=Ability.TGI | Ability.IMAGE_IN)
    )
    assert complete_worker(configured, offered) is configured


def test_the_own_path_bit_does_not_count_as_an_operators_setting() -> None:
    alone = replace(worker(), service=Service("p", "m", abilities=Ability.OWN_PATH))
    offered = OfferedModel("m", abilities=Ability.TEXT_IN)
    assert complete_worker(alone, offered).service.abilities == Ability.OWN_PATH | Ability.TEXT_IN


def test_each_type_of_one_name_has_its_own_description() -> None:
    models = (
        OfferedModel("m", 1, type=ModelType.IMAGE),
        OfferedModel("m", 2, type=ModelType.IMAGE_EDIT),
    )
    assert models_of(models) == models
    edit = replace(worker(), service=Service("p", "m", type=ModelType.IMAGE_EDIT))
    assert WorkerDescription(models=models).model_of(edit).context == 2
    assert WorkerDescription(models=models).model_of(worker("m")).context == 1


def test_invalid_names_are_left_out_and_a_long_list_is_cut() -> None:
    models = models_of(OfferedModel(name) for name in ("a", "", "a", "b\n", "x" * 257, "c"))
    assert [model.name for model in models] == ["a", "c"]
    assert len(models_of(OfferedModel(str(n)) for n in range(2 * MAX_MODELS))) == MAX_MODELS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(JSON, JSON)
def test_any_json_becomes_a_value_within_bounds(one: object, other: object) -> None:
    assert 0 <= count_of(one) <= MAX_CONTEXT
    assert text_of(one).isprintable()
    assert len(text_of(one)) <= MAX_SOFTWARE_CHARACTERS
    assert 0 <= abilities_of(one, other) <= MAX_ABILITIES


@pytest.mark.parametrize("word", ["text", "image", "audio", "video"])
def test_inputs_and_outputs_have_different_bits(word: str) -> None:
    inputs, outputs = abilities_of([word], None), abilities_of([], [word, "smell", 5])
    assert inputs & outputs == 0
    assert len(inputs) == len(outputs) == 1
