"""Request for images: new ones, or edits of images in the request."""

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from router.canonical.values import (
    DATA_URI,
    FormBody,
    read_choice,
    read_form,
    read_integer,
    read_required_text,
    read_text,
    unread_fields,
)
from router.errors import BadRequest
from router.requests import Request

MAX_PROMPT_CHARACTERS = 32_000
"""The longest description of an image; the same as OpenAI's."""

MAX_SIDE = 8_192
"""The most pixels of each side of an image."""

MAX_IMAGES = 10
"""The most images of one request; the same as OpenAI's."""

MAX_STEPS = 1_000
"""The most steps in which an image is made."""

MAX_SOURCES = 16
"""The most images that one request may send to be edited."""

SHAPING = frozenset({"stream", "output_format"})
"""Fields that are not read, and without which the answer would be of another kind."""

READ = frozenset({
    "model", "models", "prompt", "negative_prompt", "size", "width", "height", "n", "response_format", "seed", "step", "image",
    "mask",
})  # fmt: skip
"""Fields that are read here."""

_USUAL: Mapping[str, object] = {"output_format": "png"}
_NUMBERS = frozenset({"width", "height", "n", "seed", "step", "stream", "mode", "clip_skip"})
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_LINK = re.compile(r"https?://")
_MAX_LINK_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class Image:
    """Images for a description. `width` and `height` are pixels; `None` if the caller leaves a value to the worker.

    `negative` describes what must not be in the image; `base64` requests the image itself, not a URL.
    """

    prompt: str
    negative: str
    width: int | None
    height: int | None
    n: int
    base64: bool
    seed: int | None
    step: int | None
    others: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of images. A source is the image itself, or its URL on the web."""

    image: Image
    sources: tuple[bytes | str, ...]
    mask: bytes | str | None


def read(request: Request) -> Image:
    """Read a request for new images; raise `BadRequest`, which names the field."""
    return _image(read_form(request, _NUMBERS).fields)


def read_edit(request: Request) -> Edit:
    """Read a request to edit images, a form or JSON; raise `BadRequest`, which names the field."""
    form = read_form(request, _NUMBERS)
    sources, masks = _sources(form, "image"), _sources(form, "mask")
    if not sources:
        raise BadRequest("`image` must be an image: a file, a data URI, or a URL", param="image")
    if len(masks) > 1:
        raise BadRequest("`mask` is one image", param="mask")
    return Edit(_image(form.fields), sources, masks[0] if masks else None)


def _image(fields: Mapping[str, object]) -> Image:
    prompt, negative = _prompts(fields)
    width, height = _size(fields)
    return Image(
        prompt=prompt,
        negative=negative,
        width=width,
        height=height,
        n=read_integer(fields, "n", 1, MAX_IMAGES) or 1,
        base64=read_choice(fields, "response_format", "b64_json", "url") == "b64_json",
        seed=read_integer(fields, "seed", -(2**63), 2**63 - 1),
        step=read_integer(fields, "step", 1, MAX_STEPS),
        others=unread_fields(fields, READ, _USUAL),
    )


def _prompts(fields: Mapping[str, object]) -> tuple[str, str]:
    """Read the prompt and the negative prompt: LocalAI's clients write both into one text, with `|` between."""
    both = read_required_text(fields, "prompt", MAX_PROMPT_CHARACTERS)
    prompt, _, negative = map(str.strip, both.partition("|"))
    return prompt, read_text(fields, "negative_prompt", MAX_PROMPT_CHARACTERS) or negative


def _size(fields: Mapping[str, object]) -> tuple[int | None, int | None]:
    width, height = (read_integer(fields, name, 1, MAX_SIDE) for name in ("width", "height"))
    size = fields.get("size")
    if size is None or size == "auto":
        return width, height
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    sides = [int(side) for side in match.groups()] if match else []
    if not sides or max(sides) > MAX_SIDE:
        message = f"`size` must be auto, or WIDTHxHEIGHT of at most {MAX_SIDE:,} pixels each"
        raise BadRequest(message, param="size")
    return width or sides[0], height or sides[1]


def _sources(form: FormBody, name: str) -> tuple[bytes | str, ...]:
    sent = form.files.get(name, ())
    value = form.fields.get(name)
    entries = value if isinstance(value, list) else [value] if value else []
    if len(sent) + len(entries) > MAX_SOURCES:
        raise BadRequest(f"`{name}` holds at most {MAX_SOURCES} images", param=name)
    return (*sent, *(_source(entry, name) for entry in entries))


def _source(value: object, name: str) -> bytes | str:
    # Clients of OpenAI's GPT image models wrap the address in an object.
    address = value.get("image_url") if isinstance(value, dict) else value
    if isinstance(address, str):
        if written := DATA_URI.match(address):
            return _decoded(address[written.end() :], name)
        if _LINK.match(address) and len(address) <= _MAX_LINK_CHARACTERS and address.isprintable():
            return address
    raise BadRequest(f"`{name}` must be an image: a file, a data URI, or a URL", param=name)


def _decoded(written: str, name: str) -> bytes:
    try:
        return b64decode(written, validate=True)
    except ValueError as error:
        raise BadRequest(f"the data of `{name}` is not base64", param=name) from error
