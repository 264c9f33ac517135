"""The written form of answers other than texts."""

import math
import struct
from base64 import b64decode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canonical.audio import TranscriptFormat, Transcription
from router.canonical.retrieval import Rerank
from router.openai import result_writer
from router.openai.result_writer import (
    DocumentScore,
    NextToken,
    Segment,
    TokenInternals,
    write_guts,
)
from router.openai.usage import Usage

PNG = b"\x89PNG\r\n\x1a\n..."
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SPENT = Usage(7, 0)


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=4), max_size=3))
def test_vectors_are_the_same_numbers_as_lists_and_as_base64(vectors: list[list[float]]) -> None:
    plain = orjson.loads(
        result_writer.write_embeddings(vectors, model="m", base64=False, usage=SPENT)
    )
    packed = orjson.loads(
        result_writer.write_embeddings(vectors, model="m", base64=True, usage=SPENT)
    )
    assert [row["embedding"] for row in plain["data"]] == vectors
    read = [b64decode(row["embedding"]) for row in packed["data"]]
    assert [list(struct.unpack(f"<{len(row) // 4}f", row)) for row in read] == vectors
    assert [row["index"] for row in plain["data"]] == [*range(len(vectors))]
    assert plain["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_an_image_is_either_inline_or_a_data_url() -> None:
    itself = orjson.loads(result_writer.write_images([PNG], created=5, base64=True))
    assert itself["created"] == 5
    assert b64decode(itself["data"][0].pop("b64_json")) == PNG
    address = orjson.loads(result_writer.write_images([PNG], created=5, base64=False))["data"][0]
    head, _, data = address.pop("url").partition(",")
    assert (head, b64decode(data)) == ("data:image/png;base64", PNG)
    assert address == itself["data"][0] == {}


def heard(form: TranscriptFormat, *, translate: bool = False) -> Transcription:
    return Transcription(b"", "de", "", None, form, words=False, translate=translate, others={})


SEGMENTS = (Segment(0, 1.5, " Hello", (1, 2)), Segment(3661.0004, 3662.9996, "a --> b\n\nc"))


def test_a_transcript_has_the_requested_format() -> None:
    def written(form: TranscriptFormat) -> tuple[str, str]:
        kind, body = result_writer.write_transcript(heard(form), "Hello there", SEGMENTS)
        return kind, body.decode()

    assert written("json") == ("application/json", '{"text":"Hello there"}')
    assert written("text") == ("text/plain; charset=utf-8", "Hello there\n")
    assert written("srt")[1] == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n2\n01:01:01,000 --> 01:01:03,000\na -> b c\n\n"
    )
    assert written("vtt")[1] == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n\n01:01:01.000 --> 01:01:03.000\na -> b c\n\n"
    )


def test_a_verbose_transcript_has_its_segments_language_and_duration() -> None:
    _, body = result_writer.write_transcript(heard("verbose_json"), "Hello there", SEGMENTS)
    payload: dict[str, Any] = orjson.loads(body)
    first = payload.pop("segments")[0]
    assert first == {"id": 0, "start": 0, "end": 1.5, "text": " Hello", "tokens": [1, 2]}
    assert (payload["task"], payload["language"]) == ("transcribe", "de")
    assert math.isclose(payload["duration"], 3662.9996)
    _, body = result_writer.write_transcript(heard("verbose_json", translate=True), "", ())
    payload = orjson.loads(body)
    assert (payload["task"], payload["language"], payload["duration"]) == ("translate", "en", 0)


@given(st.lists(FLOATS, min_size=1), st.none() | st.integers(1, 9), st.booleans())
def test_documents_are_ranked_best_first_and_cut_to_top_n(
    scores: list[float], top_n: int | None, with_documents: bool
) -> None:
    request = Rerank("q", tuple(map(str, scores)), top_n, with_documents, others={})
    ranked = [DocumentScore(index, score) for index, score in enumerate(scores)]
    payload = orjson.loads(
        result_writer.write_ranking(request, ranked, id="r", model="m", usage=SPENT)
    )
    results = payload["results"]
    found = [result["relevance_score"] for result in results]
    assert found == sorted(scores, reverse=True)[: len(found)]
    assert len(found) == min(len(scores), top_n or len(scores))
    for result in results:
        assert scores[result["index"]] == result["relevance_score"]
        document = result.get("document")
        assert document == (
            {"text": request.documents[result["index"]]} if with_documents else None
        )


def test_tokens_are_written_as_numbers() -> None:
    assert orjson.loads(result_writer.write_tokens((5, 0))) == {"tokens": [5, 0]}


@pytest.mark.parametrize("similarities", [None, [0.5]])
def test_a_store_answers_in_columns(similarities: list[float] | None) -> None:
    payload = orjson.loads(result_writer.write_store([[1, 2]], [b"h\xc3\xa9\xff"], similarities))
    assert (payload["keys"], payload["values"]) == (
        [[1, 2]],
        ["data:application/octet-stream;base64,aMOp/w=="],
    )
    assert payload.get("similarities") == similarities
    assert orjson.loads(result_writer.DONE) == {}


def test_each_token_has_its_vectors_and_each_next_token_its_logit() -> None:
    payload = orjson.loads(
        write_guts([TokenInternals("'a'", 7, (1.0,), (2.0,), (3.0,))], [NextToken("'b'", 8, 0.5)])
    )
    assert payload == {
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
