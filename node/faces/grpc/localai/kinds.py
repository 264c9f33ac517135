"""LocalAI's embeddings, tokens, rankings and vector stores, as requests: RPCs with numbers and lists, without files.

LocalAI's images and sounds, as requests: these are files, at paths that the caller names.

A caller that names paths could read and write everything that this process can. So a path must lie under one directory that the
operator sets (`faces.localai_files`), after links and `..` are resolved; without that setting, these RPCs are refused.
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


def file_handlers(desk: ModelLookup, root: Path | None) -> dict[str, Any]:
    """Return the handlers of RPCs with files; without a directory each refuses and names the setting."""
    made = _Files(desk, root)
    return {
        "GenerateImage": made.image,
        "AudioTranscription": made.transcription,
        "TTS": made.speech,
        "SoundGeneration": made.sound,
    }


class _Files:
    def __init__(self, desk: ModelLookup, root: Path | None) -> None:
        self._desk = desk
        self._root = root

    async def image(self, asked: Any, call: Any) -> Any:
        to = self._path(asked.dst, "dst")
        prompt = asked.positive_prompt
        if asked.negative_prompt:
            prompt += f"|{asked.negative_prompt}"
        fields: dict[str, object] = {"prompt": prompt, "n": 1, "response_format": "b64_json"}
        if asked.width > 0 and asked.height > 0:
            fields["size"] = f"{asked.width}x{asked.height}"
        fields |= {"step": asked.step} if asked.step > 0 else {}
        fields |= {"seed": asked.seed & 0xFFFFFFFF} if asked.seed not in (0, -1) else {}
        words = {"mode": "mode", "clip_skip": "CLIPSkip", "enable_parameters": "EnableParameters"}
        own = {name: field for name, field in words.items() if getattr(asked, field)}
        fields |= {name: getattr(asked, field) for name, field in own.items()}
        if asked.src:
            source = await self._read(asked.src, "src")
            image = ("image", asked.src, source)
            body = await self._form(call, Kind.IMAGE_EDIT, fields, image, own)
        else:
            body = await self._desk.body(call, Kind.IMAGE, fields, own)
        await self._write(to, _image(body))
        return _METHODS["GenerateImage"].told(success=True, message="Image generated")

    async def transcription(self, asked: Any, call: Any) -> Any:
        # Despite its name, `dst` is the recording to transcribe.
        sound = await self._read(asked.dst, "dst")
        kind = Kind.TRANSLATION if asked.translate else Kind.TRANSCRIPTION
        fields: dict[str, object] = {"response_format": "verbose_json"}
        fields |= {"language": asked.language} if asked.language else {}
        said = transcript_of(await self._form(call, kind, fields, ("file", asked.dst, sound)))
        heard = [_segment(at, one) for at, one in enumerate(said.segments)]
        return _METHODS["AudioTranscription"].told(segments=heard, text=said.text)

    async def speech(self, asked: Any, call: Any) -> Any:
        to = self._path(asked.dst, "dst")
        fields: dict[str, object] = {"input": asked.text, "response_format": "wav"}
        fields |= {"voice": asked.voice} if asked.voice else {}
        fields |= {"language": asked.language} if asked.language else {}
        await self._write(to, await self._desk.body(call, Kind.SPEECH, fields))
        return _METHODS["TTS"].told(success=True)

    async def sound(self, asked: Any, call: Any) -> Any:
        to = self._path(asked.dst, "dst")
        fields: dict[str, object] = {"text": asked.text}
        if asked.HasField("duration"):
            fields["duration_seconds"] = round(asked.duration, 3)
        if asked.HasField("temperature"):
            fields["prompt_influence"] = round(asked.temperature, 6)
        if asked.HasField("sample"):
            fields["do_sample"] = asked.sample
        own: dict[str, str] = {}
        if asked.src:
            source = base64.b64encode(await self._read(asked.src, "src")).decode()
            fields["src"] = f"data:application/octet-stream;base64,{source}"
            own["src"] = "src"
        if asked.HasField("src_divisor"):
            fields["src_divisor"] = asked.src_divisor
        await self._write(to, await self._desk.body(call, Kind.SOUND, fields, own))
        return _METHODS["SoundGeneration"].told(success=True)

    async def _form(
        self,
        call: Any,
        kind: Kind,
        fields: dict[str, object],
        file: tuple[str, str, bytes],
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        asked = self._desk.request(call, kind, fields)
        form, content_type = _form({"model": asked.model, **fields}, file)
        request = replace(asked, body=form, content_type=content_type)
        return await self._desk.told(call, request, own)

    def _path(self, given: str, name: str) -> Path:
        """Return the resolved path, which must lie under the directory; raise `RpcRefused` or `BadRequest`."""
        if self._root is None:
            words = "files are exchanged in one directory: set faces.localai_files of the node"
            raise RpcRefused("FAILED_PRECONDITION", words)
        if not given or "\0" in given:
            raise BadRequest(f"{name} must be the path of a file", param=name)
        try:
            path = Path(given).resolve()
        except (OSError, RuntimeError) as error:
            raise BadRequest(f"{name} is no path", param=name) from error
        if self._root not in path.parents:
            raise RpcRefused("PERMISSION_DENIED", f"{name} must lie under {self._root}")
        return path

    async def _read(self, given: str, name: str) -> bytes:
        path = self._path(given, name)
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


def _segment(at: int, heard: Segment) -> Any:
    made = message_class("backend.TranscriptSegment")
    first, last = (round(max(0.0, min(t, 1e9)) * _SECOND) for t in (heard.start, heard.end))
    return made(id=at, start=first, end=last, text=heard.text, tokens=heard.tokens)


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


def handlers(desk: ModelLookup) -> dict[str, Any]:
    """Return the handlers of RPCs without files."""
    columns = _Columns(desk)
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
    def __init__(self, desk: ModelLookup) -> None:
        self._desk = desk

    async def embedding(self, asked: Any, call: Any) -> Any:
        wanted = asked.Embeddings or list(asked.EmbeddingTokens)
        if not wanted:
            raise BadRequest("Embeddings or EmbeddingTokens must hold a text", param="Embeddings")
        fields = {"input": wanted, "encoding_format": "float"}
        [vector] = vectors_of(await self._desk.body(call, Kind.EMBEDDING, fields), 1).vectors
        return _METHODS["Embedding"].told(embeddings=vector)

    async def tokenize(self, asked: Any, call: Any) -> Any:
        tokens = tokens_of(await self._desk.body(call, Kind.TOKENIZE, {"content": asked.Prompt}))
        return _METHODS["TokenizeString"].told(length=len(tokens), tokens=tokens)

    async def rerank(self, asked: Any, call: Any) -> Any:
        fields: dict[str, object] = {"query": asked.query, "documents": list(asked.documents)}
        if asked.top_n > 0:
            fields["top_n"] = asked.top_n
        body = await self._desk.body(call, Kind.RERANK, fields)
        said = ranking_of(body, len(asked.documents))
        result = message_class("backend.DocumentResult")
        results = [
            result(index=one.index, text=asked.documents[one.index], relevance_score=one.score)
            for one in said.ranked
        ]
        read = said.usage.prompt if said.usage else 0
        usage = message_class("backend.Usage")(
            total_tokens=int32(max(said.total, read)), prompt_tokens=int32(read)
        )
        return _METHODS["Rerank"].told(usage=usage, results=results)

    async def stores_set(self, asked: Any, call: Any) -> Any:
        values = [encode_value(value.Bytes) for value in asked.Values]
        fields = {"keys": _keys(asked.Keys), "values": values}
        await self._desk.body(call, Kind.STORE_SET, fields)
        return _METHODS["StoresSet"].told(success=True)

    async def stores_delete(self, asked: Any, call: Any) -> Any:
        await self._desk.body(call, Kind.STORE_DELETE, {"keys": _keys(asked.Keys)})
        return _METHODS["StoresDelete"].told(success=True)

    async def stores_get(self, asked: Any, call: Any) -> Any:
        body = await self._desk.body(call, Kind.STORE_GET, {"keys": _keys(asked.Keys)})
        return _METHODS["StoresGet"].told(**_written(columns_of(body)))

    async def stores_find(self, asked: Any, call: Any) -> Any:
        fields: dict[str, object] = {"key": list(asked.Key.Floats)}
        if asked.TopK > 0:
            fields["topk"] = asked.TopK
        found = columns_of(await self._desk.body(call, Kind.STORE_FIND, fields))
        if len(found.similarities) != len(found.keys):
            raise WorkerFailed("the answer has no similarities")
        told = _METHODS["StoresFind"].told
        return told(**_written(found), Similarities=found.similarities)


def _keys(keys: Any) -> list[list[float]]:
    return [list(key.Floats) for key in keys]


def _written(columns: Columns) -> dict[str, Any]:
    key, value = message_class("backend.StoresKey"), message_class("backend.StoresValue")
    return {
        "Keys": [key(Floats=one) for one in columns.keys],
        "Values": [value(Bytes=decode_value(one)) for one in columns.values],
    }
