"""Log probabilities of tokens: OpenAI's two forms, written and read, and tokens whose text is shown later."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.openai.logprobs import (
    MAX_LIKELIEST,
    HeldTokens,
    Token,
    read,
    write_chat_logprobs,
    write_completion_logprobs,
)

WORDS = (
    Token(" upon", -0.5, 7, (Token(" upon", -0.5, 7), Token(" in", -1.5, 9))),
    Token(" a", -0.25, 8, (Token(" a", -0.25, 8),)),
)


def nothing_told(token: Token) -> Token:
    return Token(token.text, token.logprob, None, tuple(map(nothing_told, token.likeliest)))


def test_a_chat_lists_its_tokens() -> None:
    logprobs = write_chat_logprobs((Token("é", -0.5), Token("a")))
    assert logprobs == {
        "content": [
            {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []},
            {"token": "a", "logprob": None, "bytes": [97], "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert read(write_chat_logprobs(WORDS)) == WORDS


def test_a_completion_has_its_tokens_in_columns() -> None:
    assert write_completion_logprobs(WORDS, 4) == {
        "tokens": [" upon", " a"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{" upon": -0.5, " in": -1.5}, {" a": -0.25}],
        "text_offset": [4, 9],
        "token_ids": [7, 8],
        "top_token_ids": [[7, 9], [8]],
    }
    # If one token has no number, the column is left out.
    assert "token_ids" not in (write_completion_logprobs((*WORDS, Token("b")), 0) or {})
    assert read(write_completion_logprobs(WORDS, 0)) == WORDS
    without = tuple(map(nothing_told, WORDS))
    assert read(write_completion_logprobs(without, 0)) == without


def test_an_answer_without_tokens_has_no_logprobs() -> None:
    assert write_chat_logprobs(()) is None
    assert write_completion_logprobs((), 3) is None
    assert read(None) == ()


@pytest.mark.parametrize(
    "said",
    [
        5,
        {"content": None},
        {"content": [{"token": 5}]},
        {"content": [{"token": "a", "top_logprobs": ["b"]}]},
        {"tokens": ["a"], "token_logprobs": [1, 2]},
        {"tokens": [5], "token_logprobs": [1]},
        {"tokens": ["a"]},
    ],
)
def test_json_of_neither_form_gives_no_tokens(said: object) -> None:
    assert read(said) == ()


def test_invalid_numbers_are_read_as_missing() -> None:
    logprobs: Any = {
        "content": [{"token": "a", "logprob": "x", "id": -1}, {"token": "b", "id": True}]
    }
    assert read(logprobs) == (Token("a"), Token("b"))
    columns = {
        "tokens": ["a"],
        "token_logprobs": [None],
        "token_ids": [1, 2],
        "top_logprobs": {},
        "top_token_ids": 5,
    }
    assert read(columns) == (Token("a"),)


def test_top_logprobs_nested_in_top_logprobs_are_ignored() -> None:
    entry: dict[str, object] = {"token": "deep"}
    for _ in range(3_000):
        entry = {"token": "a", "logprob": -1, "top_logprobs": [entry]}
    assert read({"content": [entry]}) == (Token("a", -1.0, None, (Token("a", -1.0),)),)


def test_the_number_of_likeliest_tokens_is_bounded() -> None:
    many: list[object] = [{"token": str(n), "logprob": -n} for n in range(MAX_LIKELIEST + 5)]
    [token] = read({"content": [{"token": "a", "logprob": 0, "top_logprobs": many}]})
    assert len(token.likeliest) == MAX_LIKELIEST
    columns = {
        "tokens": ["a"],
        "token_logprobs": [0],
        "top_logprobs": [{str(n): n for n in range(99)}],
    }
    assert len(read(columns)[0].likeliest) == MAX_LIKELIEST


NAMES = st.sampled_from([
    "content", "tokens", "token_logprobs", "token_ids", "top_token_ids", "token", "logprob", "id", "top_logprobs",
])  # fmt: skip
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(NAMES, some),
)


@given(NONSENSE)
def test_any_json_of_a_worker_is_read(said: object) -> None:
    for token in read(said):
        assert isinstance(token.text, str)


def test_tokens_are_returned_once_all_of_their_text_is_shown() -> None:
    held = HeldTokens(3)
    assert held.feed(WORDS[:1], 4) == ()
    assert held.start == 3
    assert held.feed(WORDS[1:], 1) == WORDS[:1]
    assert held.start == 8
    assert held.feed((), 2) == WORDS[1:]
    assert held.flush() == ()


def test_tokens_longer_than_the_shown_text_are_returned_at_the_end() -> None:
    held = HeldTokens()
    assert held.feed((Token("too long"),), 3) == ()
    assert held.flush() == (Token("too long"),)


@given(st.lists(st.text(max_size=4)), st.data())
def test_no_token_is_lost_or_returned_twice(texts: list[str], data: st.DataObject) -> None:
    held, returned, hidden = HeldTokens(), list[Token](), 0
    tokens = [Token(text, -0.5, number) for number, text in enumerate(texts)]
    for token in tokens:
        hidden += len(token.text)
        now = data.draw(st.integers(0, hidden))
        hidden -= now
        returned += held.feed([token], now)
        assert len("".join(token.text for token in returned)) == held.start
    returned += held.feed([], hidden)
    assert returned == tokens
