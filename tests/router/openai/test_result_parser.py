"""Parsing of answers other than texts: the writer's output is read back, and anything wrong is a failure."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canonical.audio import Transcription
from router.canonical.retrieval import Rerank
from router.errors import WorkerFailed
from router.openai import result_parser, result_writer
from router.openai.result_writer import DocumentScore, Segment
from router.openai.usage import Usage
from tests.router.canonical.hostile import ANYTHING

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(st.lists(FLOATS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)
SPENT = Usage(7, 0, estimated=True)
PNG = b"\x89PNG\r\n\x1a\n"
HEARD = Transcription(b"", "", "", None, "verbose_json", words=False, translate=False, others={})

READERS: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "vectors": (
        lambda body: result_parser.vectors_of(body, 1),
        {"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1}},
    ),
    "images": (result_parser.images_of, {"data": [{"b64_json": "aGk="}]}),
    "transcript": (
        result_parser.transcript_of,
        {"text": "hi", "segments": [{"start": 0, "end": 1, "text": "hi", "tokens": [1]}]},
    ),
    "ranking": (
        lambda body: result_parser.ranking_of(body, 1),
        {"results": [{"index": 0, "relevance_score": 1}]},
    ),
    "tokens": (result_parser.tokens_of, {"tokens": [1, {"id": 2, "piece": "a"}]}),
    "columns": (result_parser.columns_of, {"keys": [[1]], "values": ["a"], "similarities": [1]}),
}


@given(VECTORS, st.booleans())
def test_vectors_are_read_back(vectors: tuple[tuple[float, ...], ...], base64: bool) -> None:
    body = result_writer.write_embeddings(vectors, model="m", base64=base64, usage=SPENT)
    assert result_parser.vectors_of(body, len(vectors)) == result_parser.Vectors(vectors, SPENT)


def test_vectors_come_in_the_order_of_their_texts() -> None:
    data = [{"index": 1, "embedding": [1]}, {"index": 0, "embedding": [0]}]
    assert result_parser.vectors_of(orjson.dumps({"data": data}), 2).vectors == ((0,), (1,))


@pytest.mark.parametrize("base64", [True, False])
def test_images_are_read_back(base64: bool) -> None:
    assert result_parser.images_of(result_writer.write_images([PNG], created=1, base64=base64)) == (
        PNG,
    )
    link = "https://example.org/a.png"
    payload = {"data": [{"b64_json": "", "url": link}]}
    assert result_parser.images_of(orjson.dumps(payload)) == (link,)


def test_a_transcript_is_read_back() -> None:
    segments = (Segment(0, 1.5, "a", (1,)), Segment(1.5, 2, "b"))
    _, body = result_writer.write_transcript(HEARD, "ab", segments)
    assert result_parser.transcript_of(body) == result_parser.Transcript("ab", segments)
    assert result_parser.transcript_of(b'{"text":"ab"}') == result_parser.Transcript("ab", ())


@given(st.lists(FLOATS, min_size=1, max_size=5))
def test_a_ranking_is_read_back(scores: list[float]) -> None:
    request = Rerank("q", ("x",) * len(scores), None, with_documents=True, others={})
    ranked = [DocumentScore(index, score) for index, score in enumerate(scores)]
    body = result_writer.write_ranking(request, ranked, id="r", model="m", usage=SPENT)
    read = result_parser.ranking_of(body, len(scores))
    assert sorted(read.ranked, key=lambda one: one.index) == ranked
    assert read.usage == SPENT


def test_the_usage_of_a_ranking_may_be_a_total() -> None:
    payload = {"results": [], "usage": {"total_tokens": 9}}
    assert result_parser.ranking_of(orjson.dumps(payload), 0).usage == Usage(9, 0)
    assert result_parser.ranking_of(b'{"results":[],"usage":{}}', 0).usage is None


def test_tokens_and_columns_are_read_back() -> None:
    assert result_parser.tokens_of(result_writer.write_tokens((5, 0))) == (5, 0)
    body = result_writer.write_store([[1, 2]], ["hé".encode()], [0.5])
    assert result_parser.columns_of(body) == result_parser.Columns(((1, 2),), ("hé",), (0.5,))
    assert result_parser.columns_of(result_writer.write_store([], [])) == result_parser.Columns(
        (), (), ()
    )


@given(name=st.sampled_from(sorted(READERS)), data=st.data(), value=ANYTHING)
def test_any_answer_is_read_or_is_a_failure(name: str, data: st.DataObject, value: Any) -> None:
    read, payload = READERS[name]
    field = data.draw(st.sampled_from(sorted(payload)))
    deeper = isinstance(payload[field], list) and data.draw(st.booleans())
    first = payload[field][0] if deeper else None
    if isinstance(first, dict):
        inner = data.draw(st.sampled_from(sorted(first)))
        value = [first | {inner: value}]
    elif deeper:
        value = [value]
    try:
        read(orjson.dumps(payload | {field: value}))
    except WorkerFailed:
        return


@pytest.mark.parametrize(("read", "said"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>"])
def test_a_body_of_another_form_is_a_failure(
    read: Callable[[bytes], object], said: dict[str, Any], body: bytes
) -> None:
    read(orjson.dumps(said))
    with pytest.raises(WorkerFailed):
        read(body)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vectors", {"data": []}),
        ("vectors", {"data": [{"index": 1, "embedding": [1]}]}),
        ("vectors", {"data": [{"embedding": "AAA="}]}),
        ("vectors", {"data": [{"embedding": "AADAfw=="}]}),
        ("images", {"data": [{"url": "file:///etc/passwd"}]}),
        ("ranking", {"results": [{"index": 0, "relevance_score": 1}] * 2}),
        ("tokens", {"tokens": [-1]}),
        ("columns", {"keys": [[1]], "values": []}),
        ("columns", {"keys": [[1]], "values": ["a"], "similarities": [1, 2]}),
    ],
)
def test_an_answer_that_does_not_fit_the_request_is_a_failure(
    name: str, said: dict[str, Any]
) -> None:
    with pytest.raises(WorkerFailed):
        READERS[name][0](orjson.dumps(said))
