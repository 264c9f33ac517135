"""Writer of embeddings: numbers, or the base64 of little-endian numbers of 32 bits."""

import struct
from base64 import b64encode
from collections.abc import Iterable, Sequence

import orjson

from router.openai.usage import Usage


def written(vectors: Iterable[Sequence[float]], *, model: str, base64: bool, usage: Usage) -> bytes:
    """Return the answer with these vectors, in their order."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(one) if base64 else one}
        for index, one in enumerate(vectors)
    ]
    spent: dict[str, object] = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    spent |= {"estimated": True} if usage.estimated else {}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": spent})


def _packed(vector: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
