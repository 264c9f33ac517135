"""Parsing of a worker's options beyond its name and address, from decoded JSON."""

import pytest

from node.faces.errors import Unparseable, WrongParameter
from node.faces.v0.registration import (
    MAX_CAPACITY,
    MAX_INTEGER,
    MAX_OPTIONS,
    MAX_OPTIONS_BYTES,
    abilities_in,
    capacity_of,
    headers_of,
    load_of,
    template_of,
)
from registry.records import Ability
from router.worker_headers import MAX_HEADERS, MAX_HEADERS_BYTES
from router.workers import TEMPLATES


def test_missing_options_have_empty_defaults() -> None:
    for fields in ({}, {"headers": None, "load": None, "template": None, "capacity": None}):
        assert (headers_of(fields), load_of(fields), template_of(fields), capacity_of(fields)) == (
            (),
            "",
            "",
            0,
        )


def test_headers_are_kept_in_order_by_lower_case_names() -> None:
    fields = {"headers": {"X-Key": "K", "authorization": "Bearer Ü"[:8]}}
    assert headers_of({"headers": {"X-Key": "K", "A": "b"}}) == (("a", "b"), ("x-key", "K"))
    with pytest.raises(WrongParameter) as refused:
        headers_of(fields)
    assert "Bearer" not in str(refused.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Key": "a", "x-key": "b"},
        {"Host": "evil"},
        {"a": "x\r\nb: y"},
        {f"x-{n}": "v" for n in range(MAX_HEADERS + 1)},
        {"a": "v" * MAX_HEADERS_BYTES},
    ],
    ids=lambda headers: str(headers)[:40],
)
def test_invalid_headers_are_refused_by_field(headers: dict[str, str]) -> None:
    with pytest.raises(WrongParameter) as refused:
        headers_of({"headers": headers})
    assert refused.value.param == "headers"


@pytest.mark.parametrize("given", [[], "x", 5, {"a": 5}, {"a": None}, {"a": ["b"]}], ids=str)
def test_headers_of_another_shape_are_a_parsing_error(given: object) -> None:
    with pytest.raises(Unparseable):
        headers_of({"headers": given})


def test_load_options_are_strings_numbers_booleans_and_lists_of_them() -> None:
    options = {
        "ContextSize": 4096,
        "MMap": True,
        "Scale": 1.5,
        "Type": "llama",
        "Options": ["a", 1, False],
    }
    assert load_of({"load": options}) == (
        '{"ContextSize":4096,"MMap":true,"Options":["a",1,false],"Scale":1.5,"Type":"llama"}'
    )
    assert (
        load_of({"load": {"n": 1}})
        != load_of({"load": {"n": True}})
        != load_of({"load": {"n": 1.0}})
    )


@pytest.mark.parametrize(
    "load",
    [
        {"": 1},
        {"x" * 65: 1},
        {"ü": 1},
        {"a\n": 1},
        {"a": None},
        {"a": {}},
        {"a": [[1]]},
        {"a": [None]},
        {"a": MAX_INTEGER + 1},
        {"a": [-MAX_INTEGER - 1]},
        {f"o{n}": 1 for n in range(MAX_OPTIONS + 1)},
        {"a": "v" * MAX_OPTIONS_BYTES},
    ],
    ids=lambda load: str(load)[:40],
)
def test_invalid_load_options_are_refused_by_field(load: dict[str, object]) -> None:
    with pytest.raises(WrongParameter) as refused:
        load_of({"load": load})
    assert refused.value.param == "load"


def test_load_options_of_another_shape_are_a_parsing_error() -> None:
    with pytest.raises(Unparseable):
        load_of({"load": ["a=1"]})


def test_a_template_is_one_of_the_known_ones() -> None:
    assert [template_of({"template": template}) for template in TEMPLATES] == [*TEMPLATES]
    with pytest.raises(WrongParameter, match="chatml"):
        template_of({"template": "jinja"})


def test_the_concurrency_has_two_field_names() -> None:
    for fields in ({"capacity": 4}, {"max_concurrency": 4}, {"capacity": 4, "max_concurrency": 4}):
        assert capacity_of(fields) == 4
    assert capacity_of({"capacity": None, "max_concurrency": 3}) == 3
    for fields in ({"capacity": 4, "max_concurrency": 5}, {"capacity": 0, "max_concurrency": 5}):
        with pytest.raises(WrongParameter, match="differ"):
            capacity_of(fields)
    for wrong in (-1, MAX_CAPACITY + 1):
        with pytest.raises(WrongParameter):
            capacity_of({"max_concurrency": wrong})


def test_modalities_are_given_as_lists_of_words() -> None:
    assert abilities_in({}) == abilities_in({"input_modalities": []}) == 0
    fields = {"input_modalities": ["text", "image"], "output_modalities": ["audio"]}
    assert abilities_in(fields) == Ability.TEXT_IN | Ability.IMAGE_IN | Ability.AUDIO_OUT
    for wrong in (["smell"], [5], [None], [["text"]]):
        with pytest.raises(WrongParameter, match="image"):
            abilities_in({"input_modalities": wrong})
    with pytest.raises(Unparseable):
        abilities_in({"output_modalities": "text"})
