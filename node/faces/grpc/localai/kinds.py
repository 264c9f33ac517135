"""Requests of LocalAI's callers other than texts: embeddings, tokens, rankings, vector stores, images and sounds.

Images and sounds are files, at paths that the caller names. So that callers cannot read or write all files of this process's
user, a path must lie under one directory that the operator sets (`faces.localai_files`), after links and `..` are resolved.
Without that setting, these RPCs are refused.
"""

import asyncio
import base64
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from node.faces.grpc.localai.model_lookup import ModelLookup
from node.faces.grpc.localai.texts import int32
from router.canonical.retrieval import decode_value, encode_value
from router.errors import BadRequest, WorkerFailed
from router.openai.multipart import CONTENT_TYPE
from router.openai.result_parser import (
    Columns,
    columns_of,
    images_of,
    ranking_of,
    tokens_of,
    transcript_of,
    vectors_of,
)
from router.openai.result_writer import Segment
from router.requests import Kind
from router.rpc.messages import LOCALAI, message_class, methods_of
from router.rpc.server import RpcRefused

MAX_FILE_BYTES = 64 * 1024 * 1024
"""The largest file that is read, in bytes."""


_SECOND = 1_000_000_000
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}")


def file_handlers(lookup: ModelLookup, root: Path | None) -> dict[str, Any]:
    """Return the handlers of RPCs with files; without a directory each refuses and names the setting."""
    files = _Files(lookup, root)
    return {
        "GenerateImage": files.image,
        "AudioTranscription": files.transcription,
        "TTS": files.speech,
        "SoundGeneration": files.sound,
    }


class _Files:
    def __init__(self, lookup: ModelLookup, root: Path | None) -> None:
        self._lookup = lookup
        self._root = root

    async def image(self, request: Any, call: Any) -> Any:
        to = self._path(request.dst, "dst")
        prompt = request.positive_prompt
        if request.negative_prompt:
            prompt += f"|{request.negative_prompt}"
        fields: dict[str, object] = {"prompt": prompt, "n": 1, "response_format": "b64_json"}
        if request.width > 0 and request.height > 0:
            fields["size"] = f"{request.width}x{request.height}"
        fields |= {"step": request.step} if request.step > 0 else {}
        fields |= {"seed": request.seed & 0xFFFFFFFF} if request.seed not in (0, -1) else {}
        names = {"mode": "mode", "clip_skip": "CLIPSkip", "enable_parameters": "EnableParameters"}
        set_fields = {name: field for name, field in names.items() if getattr(request, field)}
        fields |= {name: getattr(request, field) for name, field in set_fields.items()}
        if request.src:
            source = await self._read(request.src, "src")
            image = ("image", request.src, source)
            body = await self._form(call, Kind.IMAGE_EDIT, fields, image, set_fields)
        else:
            body = await self._lookup.body(call, Kind.IMAGE, fields, set_fields)
        await self._write(to, _image(body))
        return _METHODS["GenerateImage"].reply_class(success=True, message="Image generated")

    async def transcription(self, request: Any, call: Any) -> Any:
        # Despite its name, `dst` is the recording to transcribe.
        sound = await self._read(request.dst, "dst")
        kind = Kind.TRANSLATION if request.translate else Kind.TRANSCRIPTION
        fields: dict[str, object] = {"response_format": "verbose_json"}
        fields |= {"language": request.language} if request.language else {}
        transcript = transcript_of(
            await self._form(call, kind, fields, ("file", request.dst, sound))
        )
        segments = [_segment(index, segment) for index, segment in enumerate(transcript.segments)]
        return _METHODS["AudioTranscription"].reply_class(segments=segments, text=transcript.text)

    async def speech(self, request: Any, call: Any) -> Any:
        to = self._path(request.dst, "dst")
        fields: dict[str, object] = {"input": request.text, "response_format": "wav"}
        fields |= {"voice": request.voice} if request.voice else {}
        fields |= {"language": request.language} if request.language else {}
        await self._write(to, await self._lookup.body(call, Kind.SPEECH, fields))
        return _METHODS["TTS"].reply_class(success=True)

    async def sound(self, request: Any, call: Any) -> Any:
        to = self._path(request.dst, "dst")
        fields: dict[str, object] = {"text": request.text}
        if request.HasField("duration"):
            fields["duration_seconds"] = round(request.duration, 3)
        if request.HasField("temperature"):
            fields["prompt_influence"] = round(request.temperature, 6)
        if request.HasField("sample"):
            fields["do_sample"] = request.sample
        own: dict[str, str] = {}
        if request.src:
            source = base64.b64encode(await self._read(request.src, "src")).decode()
            fields["src"] = f"data:application/octet-stream;base64,{source}"
            own["src"] = "src"
        if request.HasField("src_divisor"):
            fields["src_divisor"] = request.src_divisor
        await self._write(to, await self._lookup.body(call, Kind.SOUND, fields, own))
        return _METHODS["SoundGeneration"].reply_class(success=True)

    async def _form(
        self,
        call: Any,
        kind: Kind,
        fields: dict[str, object],
        file: tuple[str, str, bytes],
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        openai_request = self._lookup.request(call, kind, fields)
        form, content_type = _form({"model": openai_request.model, **fields}, file)
        request = replace(openai_request, body=form, content_type=content_type)
        return await self._lookup.whole_answer(call, request, own)

    def _path(self, text: str, name: str) -> Path:
        """Return the resolved path, which must lie under the directory; raise `RpcRefused` or `BadRequest`."""
        if self._root is None:
            message = "files are exchanged in one directory: set faces.localai_files of the node"
            raise RpcRefused("FAILED_PRECONDITION", message)
        if not text or "\0" in text:
            raise BadRequest(f"{name} must be the path of a file", param=name)
        try:
            path = Path(text).resolve()
        except (OSError, RuntimeError) as error:
            raise BadRequest(f"{name} is no path", param=name) from error
        if self._root not in path.parents:
            raise RpcRefused("PERMISSION_DENIED", f"{name} must lie under {self._root}")
        return path

    async def _read(self, text: str, name: str) -> bytes:
        path = self._path(text, name)
        try:
            return await asyncio.to_thread(_content, path)
        except OSError as error:
            raise BadRequest(f"{name} cannot be read: {error.strerror}", param=name) from error

    async def _write(self, path: Path, content: bytes) -> None:
        try:
            await asyncio.to_thread(_replace, path, content)
        except OSError as error:
            raise BadRequest(f"dst cannot be written: {error.strerror}", param="dst") from error


def _content(path: Path) -> bytes:
    # Do not follow a link put there since the check, and do not block on a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise BadRequest(f"a file has at most {MAX_FILE_BYTES:,} bytes")
    return content


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically: whole or not at all."""
    draft = path.with_name(f".{uuid4().hex}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _image(body: bytes) -> bytes:
    first, *_ = images_of(body) or ("",)
    if isinstance(first, str):
        raise WorkerFailed("the answer has no image")
    return first


def _segment(index: int, segment: Segment) -> Any:
    segment_class = message_class("backend.TranscriptSegment")
    first, last = (round(max(0.0, min(t, 1e9)) * _SECOND) for t in (segment.start, segment.end))
    return segment_class(id=index, start=first, end=last, text=segment.text, tokens=segment.tokens)


def _form(fields: dict[str, object], file: tuple[str, str, bytes]) -> tuple[bytes, str]:
    boundary = uuid4().hex
    name, path, content = file
    # Workers use only the file's extension; the rest of the name stays private.
    ending = Path(path).suffix.lower() if _ENDING.fullmatch(Path(path).suffix) else ""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
        for field, value in fields.items()
    ]
    head = f'Content-Disposition: form-data; name="{name}"; filename="{name}{ending}"'
    parts.append(f"--{boundary}\r\n{head}\r\n".encode())
    parts.append(b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n")
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"{CONTENT_TYPE}; boundary={boundary}"


_METHODS = methods_of(LOCALAI)


def handlers(lookup: ModelLookup) -> dict[str, Any]:
    """Return the handlers of RPCs without files."""
    columns = _Columns(lookup)
    return {
        "Embedding": columns.embedding,
        "TokenizeString": columns.tokenize,
        "Rerank": columns.rerank,
        "StoresSet": columns.stores_set,
        "StoresDelete": columns.stores_delete,
        "StoresGet": columns.stores_get,
        "StoresFind": columns.stores_find,
    }


class _Columns:
    def __init__(self, lookup: ModelLookup) -> None:
        self._lookup = lookup

    async def embedding(self, request: Any, call: Any) -> Any:
        inputs = request.Embeddings or list(request.EmbeddingTokens)
        if not inputs:
            raise BadRequest("Embeddings or EmbeddingTokens must hold a text", param="Embeddings")
        fields = {"input": inputs, "encoding_format": "float"}
        [vector] = vectors_of(await self._lookup.body(call, Kind.EMBEDDING, fields), 1).vectors
        return _METHODS["Embedding"].reply_class(embeddings=vector)

    async def tokenize(self, request: Any, call: Any) -> Any:
        fields = {"content": request.Prompt}
        tokens = tokens_of(await self._lookup.body(call, Kind.TOKENIZE, fields))
        return _METHODS["TokenizeString"].reply_class(length=len(tokens), tokens=tokens)

    async def rerank(self, request: Any, call: Any) -> Any:
        fields: dict[str, object] = {"query": request.query, "documents": list(request.documents)}
        if request.top_n > 0:
            fields["top_n"] = request.top_n
        body = await self._lookup.body(call, Kind.RERANK, fields)
        ranking = ranking_of(body, len(request.documents))
        result = message_class("backend.DocumentResult")
        results = [
            result(
                index=ranked.index,
                text=request.documents[ranked.index],
                relevance_score=ranked.score,
            )
            for ranked in ranking.ranked
        ]
        read = ranking.usage.prompt if ranking.usage else 0
        usage = message_class("backend.Usage")(
            total_tokens=int32(max(ranking.total, read)), prompt_tokens=int32(read)
        )
        return _METHODS["Rerank"].reply_class(usage=usage, results=results)

    async def stores_set(self, request: Any, call: Any) -> Any:
        values = [encode_value(value.Bytes) for value in request.Values]
        fields = {"keys": _keys(request.Keys), "values": values}
        await self._lookup.body(call, Kind.STORE_SET, fields)
        return _METHODS["StoresSet"].reply_class(success=True)

    async def stores_delete(self, request: Any, call: Any) -> Any:
        await self._lookup.body(call, Kind.STORE_DELETE, {"keys": _keys(request.Keys)})
        return _METHODS["StoresDelete"].reply_class(success=True)

    async def stores_get(self, request: Any, call: Any) -> Any:
        body = await self._lookup.body(call, Kind.STORE_GET, {"keys": _keys(request.Keys)})
        return _METHODS["StoresGet"].reply_class(**_written(columns_of(body)))

    async def stores_find(self, request: Any, call: Any) -> Any:
        fields: dict[str, object] = {"key": list(request.Key.Floats)}
        if request.TopK > 0:
            fields["topk"] = request.TopK
        columns = columns_of(await self._lookup.body(call, Kind.STORE_FIND, fields))
        if len(columns.similarities) != len(columns.keys):
            raise WorkerFailed("the answer has no similarities")
        reply_class = _METHODS["StoresFind"].reply_class
        return reply_class(**_written(columns), Similarities=columns.similarities)


def _keys(keys: Any) -> list[list[float]]:
    return [list(key.Floats) for key in keys]


def _written(columns: Columns) -> dict[str, Any]:
    key, value = message_class("backend.StoresKey"), message_class("backend.StoresValue")
    return {
        "Keys": [key(Floats=one) for one in columns.keys],
        "Values": [value(Bytes=decode_value(one)) for one in columns.values],
    }
