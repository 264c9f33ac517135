"""What a request to see a model's inner state asks for, and what is wrong with others."""

import orjson
import pytest

from router.dialects.remotellm_grpc import mapping
from router.errors import BadRequest
from router.requests import Kind, Request


def read(**fields: object) -> mapping.Guts:
    body = orjson.dumps({"model": "m", **fields})
    return mapping.read(Request("r", Kind.GUTS, "m", body, "application/json"))


def test_what_is_not_said_is_what_the_protocol_recommends() -> None:
    assert read(prompt="a") == mapping.Guts("a", fft=True, numbers=20, next=5, others={})


def test_what_is_said_counts() -> None:
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
