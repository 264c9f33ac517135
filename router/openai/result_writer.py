"""Writer for answers that are no text: rankings, embeddings, images, stores, tokens, transcripts, a model's inner state.

Where OpenAI has no form, rankings have that of Jina and Cohere, the best first; stores have columns, as LocalAI's do; tokens
have the form of LocalAI and llama.cpp, with their texts that of llama.cpp or vLLM. A node serves no files, so the URL of an image
is a `data:` URI with the image itself.
"""

import struct
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import orjson

from router.canonical.audio import Transcription
from router.canonical.retrieval import Rerank, encode_value
from router.canonical.tokenize import WITH_PIECES, Tokenize
from router.openai.media_type import type_of
from router.openai.text_writer import SUCCESS
from router.openai.usage import Usage


def write_embeddings(
    vectors: Iterable[Sequence[float]], *, model: str, base64: bool, usage: Usage
) -> bytes:
    """Return the answer with these vectors, in their order."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage_fields: dict[str, object] = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    usage_fields |= {"estimated": True} if usage.estimated else {}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage_fields})


def _packed(vector: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@dataclass(frozen=True, slots=True)
class TokenInternals:
    """One token of the text, with its embeddings and hidden state."""

    token: str
    id: int
    positional_embedding: tuple[float, ...]
    token_embedding: tuple[float, ...]
    hidden_state: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NextToken:
    """One candidate for the next token. The protocol calls its probability a logit."""

    token: str
    id: int
    logit: float


def write_guts(tokens: Iterable[TokenInternals], following: Iterable[NextToken]) -> bytes:
    """Return the answer with these tokens and candidates for the next one."""
    return orjson.dumps({"tokens": [*map(asdict, tokens)], "next": [*map(asdict, following)]})


def write_images(images: Iterable[bytes], *, created: int, base64: bool) -> bytes:
    """Return the answer with these images; `created` is Unix time."""
    data = [_said(image, base64) for image in images]
    return orjson.dumps({**SUCCESS, "created": created, "data": data})


def _said(image: bytes, base64: bool) -> dict[str, str]:  # noqa: FBT001 (as its caller has it)
    text = b64encode(image).decode()
    return {"b64_json": text} if base64 else {"url": f"data:{type_of(image).media};base64,{text}"}


DONE = b"{}"
"""The answer to a change of a store. LocalAI's is empty; this one is also valid JSON."""


def write_store(
    keys: Sequence[Sequence[float]],
    values: Sequence[bytes],
    similarities: Sequence[float] | None = None,
) -> bytes:
    """Return the answer with the values of these keys; a value that is no text is a `data:` URI."""
    payload: dict[str, object] = {
        "keys": keys,
        "values": [*map(encode_value, values)],
    }
    return orjson.dumps(
        payload if similarities is None else payload | {"similarities": similarities}
    )


def write_tokens(tokens: Sequence[int]) -> bytes:
    """Return the answer with the ids of these tokens."""
    return orjson.dumps({"tokens": list(tokens)})


def write_token_texts(request: Tokenize, tokens: Sequence[int], texts: Sequence[str]) -> bytes:
    """Return the answer with the texts of these tokens too, in the requested form."""
    if request.others.get(WITH_PIECES) is True:
        pairs = zip(tokens, texts, strict=True)
        return orjson.dumps({"tokens": [{"id": token, "piece": text} for token, text in pairs]})
    return orjson.dumps({"tokens": list(tokens), "token_strs": list(texts)})


_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the text, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()


def write_transcript(
    request: Transcription, text: str, segments: Sequence[Segment]
) -> tuple[str, bytes]:
    """Return the content type and the body of the answer, in the requested format."""
    match request.format:
        case "text":
            return "text/plain; charset=utf-8", f"{text}\n".encode(errors="replace")
        case "srt":
            cues = (f"{number}\n{_cue(s, ',')}" for number, s in enumerate(segments, 1))
            return "application/x-subrip; charset=utf-8", "".join(cues).encode(errors="replace")
        case "vtt":
            cues = (_cue(s, ".") for s in segments)
            body = "WEBVTT\n\n" + "".join(cues)
            return "text/vtt; charset=utf-8", body.encode(errors="replace")
        case "verbose_json":
            return _JSON, orjson.dumps(_verbose(request, text, segments))
        case "json":
            return _JSON, orjson.dumps({"text": text})


def _verbose(request: Transcription, text: str, segments: Sequence[Segment]) -> dict[str, object]:
    rows = [
        {"id": index, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens}
        for index, s in enumerate(segments)
    ]
    return {
        "task": "translate" if request.translate else "transcribe",
        "language": "en" if request.translate else request.language,
        "duration": max((s.end for s in segments), default=0.0),
        "text": text,
        "segments": rows,
    }


def _cue(segment: Segment, point: str) -> str:
    # A blank line would end the cue, and an arrow would begin another.
    text = " ".join(segment.text.replace("-->", "->").split())
    start, end = _time(segment.start, point), _time(segment.end, point)
    return f"{start} --> {end}\n{text}\n\n"


def _time(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(max(seconds, 0) * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{point}{thousandths:03}"


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """The score of one document for the query; `index` is its place in the request."""

    index: int
    score: float


def write_ranking(
    rerank: Rerank, ranked: Iterable[DocumentScore], *, id: str, model: str, usage: Usage, prompt: int = 0  # noqa: A002 (as the form has it)
) -> bytes:  # fmt: skip
    """Return the answer: at most `top_n` documents, with their texts if requested.

    `prompt` is the number of tokens of the query alone, if the worker counts them.
    """
    best = sorted(ranked, key=lambda one: -one.score)[: rerank.top_n]
    results = [
        {"index": one.index, "relevance_score": one.score}
        | ({"document": {"text": rerank.documents[one.index]}} if rerank.with_documents else {})
        for one in best
    ]
    usage_fields: dict[str, object] = {
        "prompt_tokens": prompt or usage.prompt,
        "total_tokens": usage.prompt,
    }
    usage_fields |= {"estimated": True} if usage.estimated else {}
    return orjson.dumps({"id": id, "model": model, "results": results, "usage": usage_fields})
