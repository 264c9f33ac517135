"""Text of a worker's refusal for people, in the shapes that workers have for it."""

import pytest

from node.faces.worker_words import MAX_FAULTS, message_in, place_of


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
def test_the_message_is_found_in_every_shape(said, words):
    assert message_in(said) == words


@pytest.mark.parametrize(
    ("given", "place"),
    [(["body", "a", 0, "b"], "a.0.b"), (["query", "a"], "query.a"), ("body", ""), (None, "")],
)
def test_a_fields_path_starts_below_the_body(given, place):
    assert place_of(given) == place
