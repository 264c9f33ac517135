"""Requests for images to a LocalAI backend."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from router.dialects import Dialect
from router.dialects.localai_grpc.backend import METHODS, BackendJob
from router.dialects.localai_grpc.media import USUAL_SIDE, USUAL_STEPS, edit
from router.errors import (
    WorkerRejected,
    WorkerUnable,
)
from router.requests import Kind
from tests.router.canonical.test_kinds import form
from tests.router.dialects.localai_grpc.asks import URI, ask, left, put, request_of
from tests.router.world import whole
from tests.workers.localai_worker import PNG, LocalAIWorker


class TestImages:
    async def test_are_written_to_files_and_returned_in_the_answer(
        self, dialect: Dialect, worker: LocalAIWorker, shared: Path
    ) -> None:
        fields = {"prompt": "a hat|a cat", "size": "64x32", "n": 2, "seed": 7, "step": 3}
        _, payload = await ask(dialect, worker, Kind.IMAGE, **fields)
        assert [b64decode(item["b64_json"]) for item in payload["data"]] == [PNG, PNG]
        first, second = (item.asked for item in worker.received)
        assert (first.positive_prompt, first.negative_prompt) == ("a hat", "a cat")
        assert (first.width, first.height, first.step, first.src) == (64, 32, 3, "")
        assert (first.seed, second.seed) == (7, 8)
        assert first.dst != second.dst
        assert left(shared) == []

    async def test_have_default_sides_and_steps_and_a_random_seed(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        _, payload = await ask(dialect, worker, Kind.IMAGE, response_format="url", quality="hd")
        request = worker.asked
        assert (request.width, request.height, request.step) == (
            USUAL_SIDE,
            USUAL_SIDE,
            USUAL_STEPS,
        )
        assert request.seed > 0
        assert payload["data"] == [{"url": URI}]

    @pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63 - 1])
    async def test_have_a_seed_that_fits_a_backend(
        self, dialect: Dialect, worker: LocalAIWorker, seed: int
    ) -> None:
        await ask(dialect, worker, Kind.IMAGE, seed=seed, n=2)
        seeds = [one.asked.seed for one in worker.received]
        assert len(set(seeds)) == 2
        assert all(0 < one < 2**31 for one in seeds)

    async def test_may_be_made_from_another_image_that_is_passed_as_a_file(
        self, dialect: Dialect, worker: LocalAIWorker, shared: Path
    ) -> None:
        await ask(dialect, worker, Kind.IMAGE_EDIT)
        await put(dialect, worker, form(("prompt", "a"), ("image", PNG), kind=Kind.IMAGE_EDIT))
        for request in worker.received:
            source = Path(request.asked.src)
            assert (source.parent.parent, source.suffix) == (shared, ".png")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"mask": URI}, "mask"),
            ({"image": [URI, URI]}, "image"),
            ({"image": "https://example.org/a.png"}, "image"),
            ({"stream": True}, "stream"),
            ({"output_format": "webp"}, "output_format"),
        ],
    )
    async def test_with_options_that_the_protocol_lacks_are_refused_by_name(
        self, dialect: Dialect, worker: LocalAIWorker, fields: dict[str, object], param: str
    ) -> None:
        with pytest.raises(WorkerUnable) as unable:
            await ask(dialect, worker, Kind.IMAGE_EDIT, **fields)
        assert (unable.value.param, worker.received) == (param, [])

    async def test_are_made_from_images_only(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        text = "data:image/png;base64," + b64encode(b"#!/bin/sh").decode()
        with pytest.raises(WorkerRejected) as refused:
            await ask(dialect, worker, Kind.IMAGE_EDIT, image=text)
        assert orjson.loads(refused.value.body)["error"]["param"] == "image"

    async def test_may_be_made_from_an_image_that_is_fetched(self) -> None:
        addresses: list[str] = []
        link = "https://example.org/a.png"

        async def fetch(address: str, param: str) -> bytes:
            addresses.append(address)
            assert param == "image"
            return PNG

        async def paint(call: str, fields: Mapping[str, object]) -> object:
            copy(str(fields["src"]), str(fields["dst"]))
            return METHODS[call].reply_class(success=True)

        request = request_of(Kind.IMAGE_EDIT, image=link)
        answer = await edit(BackendJob(request, "llama", "own", paint, fetch))
        [image] = orjson.loads(await whole(answer))["data"]
        assert (b64decode(image["b64_json"]), addresses) == (PNG, [link])


def copy(source: str, target: str) -> None:
    """Make one image from another."""
    Path(target).write_bytes(Path(source).read_bytes())
