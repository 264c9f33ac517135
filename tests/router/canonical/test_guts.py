"""Reading a request for a model's inner state, and its faults."""

import orjson
import pytest

from router.dialects.remotellm_grpc import mapping
from router.errors import BadRequest
from router.requests import Kind, Request


def read(**fields: object) -> mapping.Guts:
    body = orjson.dumps({"model": "m", **fields})
    return mapping.read(Request("r", Kind.GUTS, "m", body, "application/json"))


def test_absent_fields_have_the_values_that_the_protocol_recommends() -> None:
    assert read(prompt="a") == mapping.Guts("a", fft=True, numbers=20, next=5, others={})


def test_given_fields_override_the_defaults() -> None:
    said = read(prompt="a", fft_embeddings=False, embedding_truncation=0, top_k=0, layer=3)
    assert said == mapping.Guts("a", fft=False, numbers=0, next=0, others={"layer": 3})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "fft_embeddings": 1}, "fft_embeddings"),
        ({"prompt": "a", "embedding_truncation": -1}, "embedding_truncation"),
        ({"prompt": "a", "embedding_truncation": mapping.MAX_NUMBERS + 1}, "embedding_truncation"),
        ({"prompt": "a", "top_k": 1.5}, "top_k"),
    ],
)
def test_a_fault_names_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as bad:
        read(**fields)
    assert bad.value.param == param
