"""What all requests have in common that a LocalAI backend answers with one message."""

from math import inf, nan

import pytest

from router.canonical import tokenize
from router.dialects.localai_grpc.backend import (
    backend_answer,
    estimate_usage,
    finite,
    ignored_parameters,
)
from router.errors import WorkerFailed
from router.openai.usage import Usage
from router.peers.headers import DROPPED
from tests.router.world import whole


async def test_an_answer_has_its_length_and_names_the_fields_without_effect() -> None:
    answer = backend_answer(b"{}", unheard=["a", "b"])
    assert (answer.length, await whole(answer)) == (2, b"{}")
    assert answer.headers == {DROPPED: "a, b"}
    assert backend_answer(b"{}").headers == {}


def test_fields_without_effect_are_those_given_but_not_supported_or_not_read() -> None:
    request = tokenize.Tokenize("x", None, {"own": 1, "no name": 2})
    assert ignored_parameters(request, z=True, speed=0.5, prompt="", temperature=None) == [
        "speed",
        "z",
        "own",
    ]


def test_tokens_are_estimated_from_bytes() -> None:
    assert estimate_usage("abcd", "é") == Usage(2, 0, estimated=True)


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_nan_and_infinities_are_a_failure(number: float) -> None:
    assert finite([0.5, 1]) == [0.5, 1]
    with pytest.raises(WorkerFailed):
        finite([0.5, number])
