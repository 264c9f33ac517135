"""Example requests to a LocalAI backend, one of each kind but texts."""

import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.answer import Answer
from router.dialects import Dialect
from router.errors import WorkerUnable
from router.requests import Kind, Request
from tests.router.canonical.test_kinds import form
from tests.router.world import chat, own, whole
from tests.workers.localai_worker import PNG, WAV, LocalAIWorker

URI = "data:image/png;base64," + b64encode(PNG).decode()
ASKED: dict[Kind, dict[str, object]] = {
    Kind.EMBEDDING: {"input": "hi"},
    Kind.RERANK: {"query": "q", "documents": ["a", "bbb", "cc"]},
    Kind.TOKENIZE: {"content": "eight by"},
    Kind.IMAGE: {"prompt": "a hat"},
    Kind.IMAGE_EDIT: {"prompt": "a hat", "image": URI},
    Kind.SPEECH: {"input": "hi", "voice": "v"},
    Kind.SOUND: {"text": "rain"},
    Kind.STORE_SET: {"keys": [[1, 2]], "values": ["a"]},
    Kind.STORE_GET: {"keys": [[1, 2]]},
    Kind.STORE_DELETE: {"keys": [[1, 2]]},
    Kind.STORE_FIND: {"key": [1, 2]},
}
EVERY = pytest.mark.parametrize("kind", sorted(ASKED))
MADE = pytest.mark.parametrize(
    "kind", [Kind.IMAGE, Kind.IMAGE_EDIT, Kind.SPEECH, Kind.SOUND, Kind.TRANSCRIPTION]
)


def request_of(kind: Kind, **fields: object) -> Request:
    if kind in (Kind.TRANSCRIPTION, Kind.TRANSLATION):
        texts = [(name, str(value)) for name, value in fields.items()]
        return form(("model", "llama"), ("file", WAV), *texts, kind=kind)
    return chat(kind=kind, body=orjson.dumps({"model": "llama", **ASKED[kind], **fields}))


async def put(
    dialect: Dialect, worker: LocalAIWorker, request: Request
) -> tuple[Answer, bytes]:  # fmt: skip
    async with dialect.answer(request, own(worker.url, model="own")) as answer:
        return answer, await whole(answer)


async def ask(
    dialect: Dialect, worker: LocalAIWorker, kind: Kind, **fields: object
) -> tuple[Answer, Any]:
    answer, body = await put(dialect, worker, request_of(kind, **fields))
    assert answer.length == len(body)
    return answer, orjson.loads(body) if answer.content_type == "application/json" else body


def left(shared: Path) -> list[tuple[Path, int]]:
    """Return the files and folders that are there now, with their modes."""
    return [(path, stat.S_IMODE(path.stat().st_mode)) for path in shared.rglob("*")]


async def no_image(address: str, param: str) -> bytes:
    """Fetch nothing."""
    raise WorkerUnable(f"{address} is not fetched", param=param)
