"""What people read of a worker's refusal, in the shapes that workers have for it."""

import pytest

from node.faces.worker_words import MAX_FAULTS, place_of, words_of


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (" no ", "no"),
        ({"error": "no"}, "no"),
        ({"error": {"message": "no"}}, "no"),
        ({"detail": "no", "other": 1}, "no"),
        ({"errors": ["a", {"msg": "b"}]}, "a; b"),
        ({"detail": [{"loc": ["body", "seed"], "msg": "too big"}]}, "seed: too big"),
        ({"message": ""}, ""),
        ({"code": 7}, ""),
        (None, ""),
        ([[[[[["deep"]]]]]], ""),
        (["x"] * 100, "; ".join(["x"] * MAX_FAULTS)),
    ],
)
def test_words_are_found_in_whichever_shape_they_have(said, words):
    assert words_of(said) == words


@pytest.mark.parametrize(
    ("given", "place"),
    [(["body", "a", 0, "b"], "a.0.b"), (["query", "a"], "query.a"), ("body", ""), (None, "")],
)
def test_a_place_is_told_from_the_body_on(given, place):
    assert place_of(given) == place
