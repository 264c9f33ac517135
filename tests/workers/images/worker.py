"""Real worker for images, a `diffusers` pipeline in an environment of its own: `python -m tests.workers.images.worker`.

It has OpenAI's paths over HTTP, and a LocalAI backend's RPCs.
"""

import asyncio
import base64
import io
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler
from PIL import Image, UnidentifiedImageError

from router.rpc.messages import LOCALAI, methods_of
from tests.workers.images.pipeline import Asked, Painter

METHODS = methods_of(LOCALAI)

_MOST = 4
_SIDES = range(64, 513, 8)


class Refused(ValueError):
    """A request that cannot be served; the text says why."""


@dataclass(frozen=True, slots=True)
class Studio:
    """The painter, and a lock for one request at a time."""

    painter: Painter = field(default_factory=Painter)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def make(self, inputs: Asked, width: int, height: int) -> list[Image.Image]:
        """Paint pictures; raise `Refused`."""
        if not {width, height} <= set(_SIDES):
            raise Refused(f"size has sides from {_SIDES[0]} to {_SIDES[-1]}, multiples of 8")
        async with self.turn:
            return await asyncio.to_thread(self.painter.make, inputs, width, height)

    async def edit(self, inputs: Asked, file: Any) -> list[Image.Image]:
        """Paint pictures from an existing one; raise `Refused`."""
        try:
            image = Image.open(file).convert("RGB")
        except UnidentifiedImageError as error:
            raise Refused("image is no picture") from error
        async with self.turn:
            return await asyncio.to_thread(self.painter.edit, inputs, image)


@dataclass(frozen=True, slots=True)
class OverHttp:
    """OpenAI's paths."""

    studio: Studio

    async def generations(self, request: web.Request) -> web.Response:
        """Answer `/v1/images/generations`."""
        fields = await request.json()
        width, _, height = fields.get("size", "64x64").partition("x")
        inputs = Asked(fields["prompt"], count=_count(fields.get("n")), seed=fields.get("seed", 0))
        return _answer(await self.studio.make(inputs, int(width), int(height)))

    async def edits(self, request: web.Request) -> web.Response:
        """Answer `/v1/images/edits`."""
        form = await request.post()
        file = form["image"]
        if not isinstance(file, web.FileField):
            raise Refused("image must be a file")
        if "mask" in form:
            raise Refused("no mask is understood")
        inputs = Asked(str(form["prompt"]), count=_count(form.get("n")))
        return _answer(await self.studio.edit(inputs, file.file))


@dataclass(frozen=True, slots=True)
class OverGrpc:
    """The RPCs of a LocalAI backend that paints; pictures are files."""

    studio: Studio

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Return the handlers of the RPCs."""
        answers = {"Health": self.health, "LoadModel": self.load, "GenerateImage": self.generate}
        return {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=METHODS[name].request_class.FromString,
                response_serializer=METHODS[name].reply_class.SerializeToString,
            )
            for name, answer in answers.items()
        }

    async def health(self, request: Any, call: Any) -> Any:
        """Report that the backend is alive."""
        return METHODS["Health"].reply_class(message=b"OK")

    async def load(self, request: Any, call: Any) -> Any:
        """Report success: the pipeline is loaded from the start."""
        return METHODS["LoadModel"].reply_class(success=True, message="loaded")

    async def generate(self, request: Any, call: Any) -> Any:
        """Paint a picture, from an existing one if given, and write it to a path."""
        inputs = Asked(
            request.positive_prompt, request.negative_prompt, steps=request.step, seed=request.seed
        )
        try:
            if request.src:
                [image] = await self.studio.edit(inputs, request.src)
            else:
                [image] = await self.studio.make(inputs, request.width, request.height)
        except Refused as error:
            return METHODS["GenerateImage"].reply_class(success=False, message=str(error))
        image.save(request.dst, format="PNG")
        return METHODS["GenerateImage"].reply_class(success=True)


def _count(value: object) -> int:
    count = int(str(value)) if value is not None else 1
    if not 1 <= count <= _MOST:
        raise Refused(f"n is from 1 to {_MOST}")
    return count


def _answer(images: list[Image.Image]) -> web.Response:
    rows: list[dict[str, str]] = []
    for image in images:
        file = io.BytesIO()
        image.save(file, format="PNG")
        rows.append({"b64_json": base64.b64encode(file.getvalue()).decode()})
    return web.json_response({"created": 1, "data": rows})


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        payload = {
            "message": str(error),
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        return web.json_response({"error": payload}, status=400)


async def _http(studio: Studio, stack: AsyncExitStack) -> int:
    http = OverHttp(studio)
    app = web.Application(client_max_size=16 * 1024 * 1024, middlewares=[_refusing])
    app.router.add_post("/v1/images/generations", http.generations)
    app.router.add_post("/v1/images/edits", http.edits)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def _grpc(studio: Studio, stack: AsyncExitStack) -> int:
    server = grpc.aio.server()
    handlers = OverGrpc(studio).handlers()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(LOCALAI, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, None)
    return int(port)


async def _serve() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    studio = Studio()
    async with AsyncExitStack() as stack:
        http, rpc = await _http(studio, stack), await _grpc(studio, stack)
        url = f"http://127.0.0.1:{http}/v1"
        sys.stdout.write(f"ready url={url} grpc=grpc+localai://127.0.0.1:{rpc}\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_serve())
