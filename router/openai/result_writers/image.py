"""Writer of images: the one of `b64_json` and `url` that was asked for, and not the other.

A node serves no files: the address that it gives is a `data:` URI, which holds the image itself.
"""

from base64 import b64encode
from collections.abc import Iterable

import orjson

from router.openai.file_type import type_of
from router.openai.text_writer import SUCCESS


def written(images: Iterable[bytes], *, created: int, base64: bool) -> bytes:
    """Return the answer with these images; `created` is Unix time."""
    data = [_said(one, base64) for one in images]
    return orjson.dumps({**SUCCESS, "created": created, "data": data})


def _said(image: bytes, base64: bool) -> dict[str, str]:  # noqa: FBT001 (as its caller has it)
    text = b64encode(image).decode()
    return {"b64_json": text} if base64 else {"url": f"data:{type_of(image).media};base64,{text}"}
