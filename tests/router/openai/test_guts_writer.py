"""The written form of a model's inner state."""

import orjson

from router.openai.result_writer import Next, TokenGuts, write_guts


def test_each_token_has_its_vectors_and_each_next_token_its_logit() -> None:
    said = orjson.loads(
        write_guts([TokenGuts("'a'", 7, (1.0,), (2.0,), (3.0,))], [Next("'b'", 8, 0.5)])
    )
    assert said == {
        "tokens": [
            {
                "token": "'a'",
                "id": 7,
                "positional_embedding": [1.0],
                "token_embedding": [2.0],
                "hidden_state": [3.0],
            }
        ],
        "next": [{"token": "'b'", "id": 8, "logit": 0.5}],
    }
