"""Tokens of llama.cpp, vLLM and LocalAI in TGI's form."""

import orjson
import pytest

from node.faces.tgi.encoder import fields_of, tokens
from router.errors import WorkerFailed, WorkerUnable


def said(inputs, **fields):
    return tokens(orjson.dumps(fields), inputs)


def test_tokens_that_make_up_the_text_have_their_places():
    assert said("hi ho", tokens=[{"id": 1, "piece": "hi"}, {"id": 2, "piece": " ho"}]) == [
        {"id": 1, "text": "hi", "start": 0, "stop": 2},
        {"id": 2, "text": " ho", "start": 2, "stop": 5},
    ]


def test_places_are_counted_in_characters_even_where_a_token_is_half_of_one():
    halves = [{"id": 1, "piece": [0xC3]}, {"id": 2, "piece": [0xA9]}, {"id": 3, "piece": "é!"}]
    assert said("éé!", tokens=halves) == [
        {"id": 1, "text": "é", "start": 0, "stop": 1},
        {"id": 2, "text": "", "start": 1, "stop": 1},
        {"id": 3, "text": "é!", "start": 1, "stop": 3},
    ]


def test_special_tokens_around_the_text_have_no_length():
    framed = [{"id": 1, "piece": "<s>"}, {"id": 2, "piece": "hi"}, {"id": 3, "piece": "</s>"}]
    assert said("hi", tokens=framed) == [
        {"id": 1, "text": "<s>", "start": 0, "stop": 0},
        {"id": 2, "text": "hi", "start": 0, "stop": 2},
        {"id": 3, "text": "</s>", "start": 2, "stop": 2},
    ]


def test_vllms_token_strings_give_the_places():
    assert [t["stop"] for t in said("hi ho", tokens=[1, 2], token_strs=["hi", " ho"])] == [2, 5]


@pytest.mark.parametrize(
    "strings",
    [
        ["hi", "\u0120h\u00c3", "\u00a9"],
        ["\u2581hi", "\u2581h\u00e9"],
        ["<s>", "\u2581hi", "\u2581h\u00e9"],
    ],
)
def test_vllms_token_strings_may_have_tokenizer_markers(strings):
    entries = said("hi h\u00e9", tokens=[*range(len(strings))], token_strs=strings)
    assert "".join(token["text"] for token in entries).removeprefix("<s>") == "hi h\u00e9"
    assert entries[-1]["stop"] == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": [1, 2]},
        {"tokens": [1, 2], "token_strs": ["hi", "ho"]},
        {"tokens": [1, 2], "token_strs": ["hi"]},
        {"tokens": [{"id": 1, "piece": "hi"}, {"id": 2}]},
        {"tokens": [{"id": 1, "piece": "hi"}, {"id": 2, "piece": " he"}]},
    ],
)
def test_tokens_without_places_are_refused_as_unsupported(fields):
    with pytest.raises(WorkerUnable):
        said("hi ho", **fields)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[1]", b"{}", b'{"tokens":[true]}', b'{"tokens":[-1]}', b'{"tokens":["a"]}'],
)
def test_an_invalid_answer_is_a_failed_worker(body):
    with pytest.raises(WorkerFailed):
        tokens(body, "hi")


def test_special_tokens_are_requested_unless_declined():
    assert fields_of({}, "hi") == {"content": "hi", "add_special_tokens": True}
    assert fields_of({"add_special_tokens": False}, "hi")["add_special_tokens"] is False
