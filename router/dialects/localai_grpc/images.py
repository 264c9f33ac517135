"""Images from a LocalAI backend: one after the other; whatever is an image is a file to it."""

import time
from collections.abc import Mapping
from random import randrange

from router.canonical import image
from router.canonical.image import SHAPING, Edit, Image
from router.canonical.values import text, whole
from router.dialects import Answer
from router.dialects.localai_grpc.exchange import NAME, Asking, answer_of, unheard
from router.dialects.localai_grpc.files import Folder, folder
from router.errors import BadRequest, WorkerFailed, WorkerUnable
from router.openai.file_type import type_of
from router.openai.result_writers import refused
from router.openai.result_writers.image import written
from router.translate.request import checked, refuse

USUAL_SIDE = 512
"""Pixels of each side of an image whose caller does not say: LocalAI's own."""

USUAL_STEPS = 15
"""Steps in which an image is made whose caller does not say."""

MOST_SEED = 2**31 - 1

MAX_PARAMETERS = 1_024
"""Characters of the names of a pipeline's parameters."""

OWN = frozenset({"mode", "clip_skip", "enable_parameters"})
"""Words that only this protocol has."""


async def generate(asking: Asking) -> Answer:
    """Have images made of a description."""
    asked = checked(image.read, asking.request)
    refuse(NAME, asked, SHAPING)
    async with folder() as shared:
        return await _made(asking, asked, shared, source="")


async def edit(asking: Asking) -> Answer:
    """Have images made of a description and of another image."""
    asked = checked(image.read_edit, asking.request)
    refuse(NAME, asked.image, SHAPING)
    source = await _source(asking, asked)
    async with folder() as shared:
        path = await shared.put(f"source{type_of(source).ending}", source)
        return await _made(asking, asked.image, shared, source=path)


async def _source(asking: Asking, asked: Edit) -> bytes:
    if asked.mask is not None:
        raise WorkerUnable(f"{NAME} has no word for `mask`", param="mask")
    [source, *more] = asked.sources
    if more:
        raise WorkerUnable(f"{NAME} edits one image at a time", param="image")
    if isinstance(source, str):
        return await asking.fetch(source, "image")
    if not type_of(source).is_image:
        raise refused("`image` is no image: send PNG, JPEG, WebP or GIF", "image")
    return source


def own_words(others: Mapping[str, object]) -> Mapping[str, object]:
    """Return what is said in words of LocalAI's own, by the names of its fields; raise `BadRequest`."""
    said = {
        "mode": whole(others, "mode", 0, 2**31 - 1),
        "CLIPSkip": whole(others, "clip_skip", 0, 2**31 - 1),
        "EnableParameters": text(others, "enable_parameters", MAX_PARAMETERS),
    }
    return {name: value for name, value in said.items() if value}


async def _made(asking: Asking, asked: Image, shared: Folder, *, source: str) -> Answer:
    own = _checked_words(asked)
    first = randrange(1, MOST_SEED) if asked.seed is None else asked.seed  # noqa: S311 (it guards nothing)
    images: list[bytes] = []
    for number in range(asked.n):
        name = f"made-{number}.png"
        said = {
            "width": asked.width or USUAL_SIDE,
            "height": asked.height or USUAL_SIDE,
            "step": asked.step or USUAL_STEPS,
            # From the same seed each would be the same image, and zero is no seed.
            "seed": (first + number - 1) % MOST_SEED + 1,
            "positive_prompt": asked.prompt,
            "negative_prompt": asked.negative,
            "dst": shared.place(name),
            "src": source,
            **own,
        }
        await asking.ask("GenerateImage", said)
        made = await shared.take(name)
        if not type_of(made).is_image:
            raise WorkerFailed("what the worker made is no image")
        images.append(made)
    body = written(images, created=int(time.time()), base64=asked.base64)
    heard = sorted(OWN & set(asked.others))
    # A greater seed is another one there.
    changed = (asked.seed or 0) > MOST_SEED
    missing = [name for name in unheard(asked, seed=changed) if name not in heard]
    return answer_of(body, unheard=missing, heard=heard)


def _checked_words(asked: Image) -> Mapping[str, object]:
    try:
        return own_words(asked.others)
    except BadRequest as error:
        raise refused(str(error), error.param or "") from error
