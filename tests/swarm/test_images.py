"""Does a real pipeline paint through the mesh? `diffusers` with random weights behind node 1; OpenAI's client asks node 3."""

import base64
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types import ImagesResponse

from node.demo.play import Actor
from registry.records import ModelType
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm

pytestmark = pytest.mark.images

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv" / "images" / "bin" / "python"
PROJECT = "pictures"
KINDS = {"maker": ModelType.IMAGE, "editor": ModelType.IMAGE_EDIT}
over = pytest.mark.parametrize("over", ["http", "grpc"])
"""Over OpenAI's HTTP, and as a LocalAI backend, to which pictures are files."""


@pytest.fixture(scope="module")
def painter(swarm: Swarm) -> Actor:
    """The pipeline, in a process of its own environment."""
    if not PYTHON.exists():
        pytest.skip("the pipeline is not installed; `make images` installs it")
    return swarm.start_program("painter", str(PYTHON), "-m", "tests.workers.images.worker")


@pytest.fixture
async def ai(
    three: list[Node], client: Client, painter: Actor
) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at a node that has no worker."""
    addresses = {"http": painter.fields["url"], "grpc": painter.fields["grpc"]}
    rows = [
        {"model": f"{name}-over-{protocol}", "api": api, "type": int(kind)}
        for name, kind in KINDS.items()
        for protocol, api in addresses.items()
    ]
    answer = await client.post(
        three[0], "/api/v0/ai/project/register", {"project": PROJECT, "models": rows}
    )
    assert answer.status == 200, answer.body
    await client.listed(three, *(str(row["model"]) for row in rows))
    async with openai.AsyncOpenAI(
        base_url=f"{three[2].http}/v1", api_key="unused", max_retries=0, timeout=60
    ) as ai:
        yield ai
    await client.unregister(three[0], PROJECT)


async def made(
    ai: openai.AsyncOpenAI, over: str, prompt: str, *, seed: int = 1, size: str = "64x64"
) -> bytes:
    answer = await ai.images.generate(
        model=f"maker-over-{over}", prompt=prompt, size=size, extra_body={"seed": seed}
    )
    return pictures(answer)[0]


async def edited(ai: openai.AsyncOpenAI, over: str, image: bytes, prompt: str) -> bytes:
    file = ("picture.png", image, "image/png")
    answer = await ai.images.edit(
        model=f"editor-over-{over}", image=file, prompt=prompt, extra_body={"seed": 1}
    )
    return pictures(answer)[0]


def pictures(answer: ImagesResponse) -> list[bytes]:
    return [base64.b64decode(row.b64_json or "") for row in answer.data or ()]


def sides(png: bytes) -> tuple[int, ...]:
    """Return width and height, as the head of the file gives them."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


@over
async def test_a_picture_is_made_and_depends_on_the_prompt_and_the_seed(
    ai: openai.AsyncOpenAI, over: str
) -> None:
    vine = await made(ai, over, "a vine")
    assert sides(vine) == (64, 64)
    assert vine == await made(ai, over, "a vine")
    assert vine != await made(ai, over, "a car")
    assert vine != await made(ai, over, "a vine", seed=2)


@over
async def test_several_pictures_of_another_size_are_made(ai: openai.AsyncOpenAI, over: str) -> None:
    model = f"maker-over-{over}"
    one, other = pictures(
        await ai.images.generate(model=model, prompt="a vine", n=2, size="128x64")
    )
    assert sides(one) == sides(other) == (128, 64)
    assert one != other


@over
async def test_a_picture_is_edited_and_depends_on_the_original_and_the_prompt(
    ai: openai.AsyncOpenAI, over: str
) -> None:
    vine, car = await made(ai, over, "a vine"), await made(ai, over, "a car")
    edit = await edited(ai, over, vine, "in winter")
    assert sides(edit) == (64, 64)
    assert edit == await edited(ai, over, vine, "in winter")
    assert edit != await edited(ai, over, car, "in winter")
    assert edit != await edited(ai, over, vine, "at night")


async def test_a_refusal_of_the_pipeline_is_passed_on_in_its_own_words(
    ai: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError, match="sides from 64 to 512"):
        await made(ai, "http", "a vine", size="1x1")
    with pytest.raises(openai.BadRequestError, match="image is no picture"):
        await edited(ai, "http", b"no picture", "in winter")
