"""Parser for answers in OpenAI's form that are no text: JSON in, values out. `router.openai.text_parser` reads texts.

For clients that speak another protocol. An invalid answer is a failure of the worker that gave it.
"""

import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.errors import WorkerFailed
from router.openai.result_writer import DocumentScore, Segment
from router.openai.text_parser import answer_object
from router.openai.usage import Usage, read_usage

_MOST_TOKEN = 2**31 - 1
# The greatest 32-bit float: other protocols cannot express more.
_MOST = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class Vectors:
    """Embeddings, in the order of their texts; `usage` if it was reported."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranked documents, in the order of the answer; `usage` if it was reported, and `total`, its `total_tokens`."""

    ranked: tuple[DocumentScore, ...]
    usage: Usage | None
    total: int = 0


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said, and when; without segments if the answer has no times."""

    text: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Entries of a store; `similarities` of found ones, else none."""

    keys: tuple[tuple[float, ...], ...]
    values: tuple[str, ...]
    similarities: tuple[float, ...]


def vectors_of(body: bytes, count: int) -> Vectors:
    """Read the embeddings of `count` texts, as numbers or base64."""
    answer = answer_object(body)
    placed: dict[int, tuple[float, ...]] = {}
    for position, entry in enumerate(_list(answer, "data")):
        match entry:
            case {"embedding": vector, **rest}:
                placed[_place(rest.get("index", position), count)] = _vector(vector)
            case _:
                raise WorkerFailed("the answer contains an invalid embedding")
    if len(placed) != count:
        raise WorkerFailed("the answer has not one embedding for each text")
    return Vectors(tuple(placed[position] for position in range(count)), _spent(answer))


def images_of(body: bytes) -> tuple[bytes | str, ...]:
    """Read images: each is the image itself, or its URL on the web."""
    return tuple(map(_image, _list(answer_object(body), "data")))


def transcript_of(body: bytes) -> Transcript:
    """Read the transcript of a recording, in JSON, verbose or not."""
    answer = answer_object(body)
    text = answer.get("text")
    if not isinstance(text, str):
        raise WorkerFailed("the answer has no text")
    segments = answer.get("segments")
    return Transcript(text, tuple(map(_segment, segments if isinstance(segments, list) else ())))


def ranking_of(body: bytes, count: int) -> Ranking:
    """Read a ranking of `count` documents, in the form of Jina and Cohere."""
    answer = answer_object(body)
    ranked = tuple(_ranked(entry, count) for entry in _list(answer, "results"))
    if len({entry.index for entry in ranked}) != len(ranked):
        raise WorkerFailed("a document is ranked twice")
    match answer.get("usage"):
        case {"total_tokens": int(total)} if 0 <= total <= _MOST_TOKEN:
            return Ranking(ranked, _spent(answer), int(total))
    return Ranking(ranked, _spent(answer))


def tokens_of(body: bytes) -> tuple[int, ...]:
    """Read the ids of tokens, which llama.cpp may give with their texts."""
    return tuple(map(_token, _list(answer_object(body), "tokens")))


def columns_of(body: bytes) -> Columns:
    """Read what a store returned or found."""
    answer = answer_object(body)
    keys = tuple(map(_numbers, _list(answer, "keys")))
    values = tuple(str(value) for value in _list(answer, "values") if isinstance(value, str))
    similarities = _numbers(answer.get("similarities") or [])
    if len(keys) != len(_list(answer, "values")) or len(keys) != len(values):
        raise WorkerFailed("the answer has not one value for each key")
    if similarities and len(similarities) != len(keys):
        raise WorkerFailed("the answer has not one similarity for each key")
    return Columns(keys, values, similarities)


def _vector(value: object) -> tuple[float, ...]:
    if not isinstance(value, str):
        return _numbers(value)
    packed = _decoded(value)
    if len(packed) % 4:
        raise WorkerFailed("an embedding is not a list of numbers")
    return _numbers(list(struct.unpack(f"<{len(packed) // 4}f", packed)))


def _image(value: object) -> bytes | str:
    match value:
        case {"b64_json": str(data)} if data:
            return _decoded(data)
        case {"url": str(url)} if url.startswith("data:"):
            return _decoded(url.partition(",")[2])
        case {"url": str(url)} if url.startswith(("http://", "https://")):
            return url
    raise WorkerFailed("the answer contains an invalid image")


def _segment(value: object) -> Segment:
    match value:
        case {
            "start": int() | float() as start,
            "end": int() | float() as end,
            "text": str(text),
            **rest,
        }:
            tokens = rest.get("tokens")
            numbers = tuple(map(_token, tokens)) if isinstance(tokens, list) else ()
            begins, ends = _numbers([start, end])
            return Segment(begins, ends, text, numbers)
    raise WorkerFailed("the answer contains an invalid segment")


def _ranked(value: object, count: int) -> DocumentScore:
    match value:
        case {"index": index, "relevance_score": score}:
            return DocumentScore(_place(index, count), _numbers([score])[0])
    raise WorkerFailed("the answer ranks an unknown document")


def _token(value: object) -> int:
    number = value.get("id") if isinstance(value, dict) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST_TOKEN:
        raise WorkerFailed("the answer contains an invalid token")
    return number


def _place(value: object, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise WorkerFailed("the answer refers to something that was not requested")
    return value


def _numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, list):
        numbers = [
            number
            for number in value
            if isinstance(number, int | float) and not isinstance(number, bool)
        ]
        if len(numbers) == len(value) and all(-_MOST <= number <= _MOST for number in numbers):
            return tuple(map(float, numbers))
    raise WorkerFailed("the answer contains an invalid list of numbers")


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError as error:
        raise WorkerFailed("the answer contains invalid base64") from error


def _spent(answer: Mapping[str, object]) -> Usage | None:
    match answer.get("usage"):
        # Jina and Infinity report only the total, which is all prompt.
        case {"total_tokens": int(total), **rest} if "prompt_tokens" not in rest:
            return read_usage({"usage": {"prompt_tokens": total}})
    return read_usage(answer)


def _list(answer: Mapping[str, object], name: str) -> Sequence[object]:
    rows = answer.get(name)
    if not isinstance(rows, list):
        raise WorkerFailed(f"the answer has no list of {name}")
    return rows
