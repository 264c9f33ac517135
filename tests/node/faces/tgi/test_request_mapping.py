"""Mapping of TGI's requests to OpenAI's body: bounds, defaults, and refused values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.tgi.request_mapping import grammar, read
from router.errors import BadRequest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def asked(**parameters):
    return read({"inputs": "Once", "parameters": parameters})


def fields(**parameters):
    return dict(asked(**parameters).fields)


def test_the_default_is_a_hundred_tokens_by_greedy_decoding():
    plain = {"prompt": "Once", "max_tokens": 100, "temperature": 0.0}
    assert fields() == plain
    assert dict(read({"inputs": "Once"}).fields) == plain
    assert dict(read({"inputs": "Once", "parameters": None}).fields) == plain


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"max_new_tokens": 7}, {"max_tokens": 7, "temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 1.0}, {"temperature": 0.0}),
        ({"top_p": 0.9}, {"temperature": 1.0, "top_p": 0.9}),
        ({"top_p": 1.0}, {"temperature": 0.0}),
        ({"top_k": 5, "do_sample": False}, {"temperature": 1.0, "top_k": 5}),
        ({"typical_p": 0.95}, {"temperature": 1.0, "typical_p": 0.95}),
        ({"repetition_penalty": 1.1}, {"temperature": 0.0, "repetition_penalty": 1.1}),
        ({"repetition_penalty": 1.0, "frequency_penalty": 0}, {"temperature": 0.0}),
        ({"frequency_penalty": -1}, {"temperature": 0.0, "frequency_penalty": -1.0}),
        ({"stop": ["a", "", "b"]}, {"temperature": 0.0, "stop": ["a", "b"]}),
        ({"seed": 7}, {"temperature": 0.0, "seed": 7}),
        ({"seed": 2**64 - 1}, {"temperature": 0.0, "seed": 2**63 - 1}),
        ({"truncate": 4}, {"temperature": 0.0, "truncate_prompt_tokens": 4}),
        ({"truncate": 5}, {"temperature": 0.0}),
        ({"best_of": 1, "watermark": False, "top_n_tokens": None}, {"temperature": 0.0}),
        ({"grammar": {"type": "regex", "value": "a+"}}, {"temperature": 0.0, "guided_regex": "a+"}),
        ({"grammar": {"type": "json", "value": SCHEMA}}, {"response_format": NAMED}),
        ({"unknown": 1}, {"temperature": 0.0}),
    ],
)
def test_each_parameter_is_mapped_to_openais_fields(parameters, said):
    plain = {"prompt": "Once", "max_tokens": 100, "temperature": 0.0}
    assert fields(**parameters) == plain | said


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_new_tokens", [0, -1, 2**31, 1.5, True, "5"]),
        ("temperature", [0, -1, "1", True]),
        ("top_p", [0, 1.1, -0.5]),
        ("typical_p", [0, 2]),
        ("top_k", [0, -1, 1.5]),
        ("repetition_penalty", [0, -1]),
        ("frequency_penalty", [-2, 2.1]),
        ("seed", [-1, 2.5, "x"]),
        ("stop", ["a", ["a"] * 5, [1]]),
        ("truncate", [0, -1]),
        ("best_of", [0]),
        ("top_n_tokens", [6, -1, 1.5]),
        ("decoder_input_details", [1]),
        ("watermark", ["x"]),
        ("adapter_id", [5]),
        ("do_sample", ["yes"]),
        ("details", [1]),
        ("return_full_text", ["x"]),
        ("grammar", ["x", {"type": "json", "value": "no JSON"}, {"type": "gbnf", "value": "x"}]),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(BadRequest) as refused:
            asked(**{name: value})
        assert refused.value.param == name


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({"watermark": True}, "watermark"),
        ({"decoder_input_details": True, "watermark": True}, "decoder_input_details"),
        ({"best_of": 2}, "best_of"),
        ({"adapter_id": "x"}, "adapter_id"),
        ({"watermark": False, "best_of": 1, "adapter_id": None, "top_n_tokens": 5}, ""),
    ],
)
def test_a_parameter_that_only_tgi_workers_know_is_named(given, needs):
    assert asked(**given).needs == needs


@pytest.mark.parametrize("given", [{}, {"inputs": ""}, {"inputs": 5}, {"inputs": ["a"]}])
def test_inputs_must_be_a_text(given):
    with pytest.raises(BadRequest) as refused:
        read(given)
    assert refused.value.param == "inputs"


def test_parameters_must_be_an_object():
    with pytest.raises(BadRequest):
        read({"inputs": "a", "parameters": [1]})


def test_a_schema_may_be_given_as_a_json_string():
    assert grammar({"type": "json", "value": '{"type":"string"}'}, "grammar") == grammar(
        {"type": "json", "value": {"type": "string"}}, "grammar"
    )


def test_a_seed_is_reported_only_when_sampling():
    assert asked(seed=7).seed is None
    assert asked(seed=7, do_sample=True).seed == 7


def test_details_are_returned_unless_they_are_declined():
    assert [
        asked(**parameters).details for parameters in ({}, {"details": True}, {"details": False})
    ] == [
        True,
        True,
        False,
    ]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["type", "value", "json", "regex"]), inner, max_size=3)),
       st.sampled_from(["max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop", "grammar", "truncate", "best_of",
                        "details", "frequency_penalty", "typical_p", "adapter_id"]))  # fmt: skip
def test_any_value_of_a_parameter_is_read_or_refused_by_name(value, name):
    refused = ""
    try:
        asked(**{name: value})
    except BadRequest as error:
        refused = error.param
    assert refused in ("", name)


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, None),
        ({"details": False}, None),
        ({"details": True}, 1),
        ({"top_n_tokens": 3}, 3),
        ({"details": True, "top_n_tokens": 0}, 1),
    ],
)
def test_logprobs_are_requested_when_details_or_top_tokens_are(parameters, count):
    request = read({"inputs": "Once", "parameters": parameters})
    assert request.fields.get("logprobs") == count
    assert request.details is (parameters.get("details") is not False)
