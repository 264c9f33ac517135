"""Questions to other nodes about their caches: read as written, and bounded whatever their content."""

from collections.abc import Mapping

import orjson
import pytest

from registry.records import Load
from router.errors import BadRequest
from router.openai.prefixes import MAX_LINKS, Prefix, Prefixes
from router.peers.replica_question import encode_answer, parse_answer, parse_question
from router.requests import Kind
from router.state.prefix_index import Read, ReplicaAnswer
from router.state.service_time import ServiceTime

SAID = Prefixes(tuple(Prefix(bytes([n]) * 16, 10 * n) for n in (1, 2, 3)))
ASKED: Mapping[str, object] = {
    "kind": "chat/completions",
    "project": "p",
    "model": "m",
    "cid": "",
    "prefixes": [prefix.digest.hex() for prefix in SAID.chain],
}


def test_a_question_is_read_with_positions_as_sizes() -> None:
    question = parse_question(ASKED)
    assert (question.kind, question.project, question.model, question.cid) == (
        Kind.CHAT,
        "p",
        "m",
        "",
    )
    assert [(p.digest, p.size) for p in question.prefixes.chain] == [
        (prefix.digest, position) for position, prefix in enumerate(SAID.chain, 1)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "prophecies"},
        {"model": 1},
        {"prefixes": "00"},
        {"prefixes": ["zz"]},
        {"prefixes": ["00"]},
        {"prefixes": [7]},
        {"prefixes": ["00" * 16] * (MAX_LINKS + 1)},
    ],
)
def test_an_invalid_question_is_refused(wrong: Mapping[str, object]) -> None:
    with pytest.raises(BadRequest):
        parse_question({**ASKED, **wrong})


def test_an_answer_is_read_as_it_was_written() -> None:
    time = ServiceTime(fixed=1.5, kilobyte=0.25, holds=60.0, error=0.5, answers=9)
    answer = ReplicaAnswer(Read(2, 1.25), Load(3, slots=4), time)
    body = orjson.dumps(encode_answer(answer))
    assert parse_answer(body, SAID) == ReplicaAnswer(Read(20, 1.25), Load(3, slots=4), time)
    assert parse_answer(orjson.dumps(encode_answer(ReplicaAnswer())), SAID) == ReplicaAnswer()


@pytest.mark.parametrize(
    "answer",
    [
        {"prefixes": 4, "age": 1},
        {"prefixes": -1, "age": 1},
        {"prefixes": 1},
        {"prefixes": 1, "age": -1},
        {"prefixes": 1, "age": 1e9},
        {"prefixes": True, "age": "1"},
        {"prefixes": 0, "load": 7, "service_time": "fixed=1"},
    ],
)
def test_an_implausible_answer_gives_nothing(answer: Mapping[str, object]) -> None:
    assert parse_answer(orjson.dumps(answer), SAID) == ReplicaAnswer()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"1", b'{"prefixes":1,"age":NaN}'])
def test_a_body_that_is_no_answer_is_read_as_none(body: bytes) -> None:
    assert parse_answer(body, SAID) is None
