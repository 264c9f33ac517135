"""Faces over gRPC, opened on the tests' nodes and called by real gRPC clients."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from node.config.addresses import HostPort
from node.config.settings import FacesSettings
from node.faces.grpc import open_face
from router.rpc.call import Channels
from router.rpc.messages import methods_of
from router.ssrf_guard import SsrfGuard
from tests.router.world import QUICK

PATIENT = QUICK.model_copy(
    update={"first_byte_timeout": 60.0, "idle_timeout": 60.0, "total_timeout": 90.0}
)
"""Limits of the client: longer than the node's, so that timeouts happen at the node."""


class Client:
    """Client of a face, which calls its RPCs by name."""

    def __init__(self, service, address):
        self._methods = methods_of(service)
        self._channels = Channels(PATIENT, SsrfGuard())
        self._api = f"grpc://{address}"
        self.said = {}

    async def ask(self, name, **fields):
        method = self._methods[name]
        return await self._channels.ask(
            self._api, method, method.request_class(**fields), self.said
        )

    async def stream(self, name, **fields):
        method = self._methods[name]
        async with self._channels.stream(
            self._api, method, method.request_class(**fields), self.said
        ) as replies:
            while (reply := await replies.next()) is not None:
                yield reply

    async def named(self, name, **fields):
        """Call an RPC, and return the parameters that the answer names as without effect."""
        method = self._methods[name]
        async with self._channels._use_channel(self._api) as line:
            call = line.call(method, method.request_class(**fields), self.said, 10)
            if method.streams:
                async for _ in call:
                    pass
            else:
                await call
            trailing = dict(await call.trailing_metadata() or ())
        return trailing.get("x-modelvine-dropped-params", "")

    async def close(self):
        await self._channels.close()


@pytest.fixture
async def opened():
    """Return a function that opens a face of a node with some settings, and returns its client."""
    async with AsyncExitStack() as closing:

        async def open_(name, service, context, **faces):
            settings = context.settings.model_copy(update={"faces": FacesSettings(**faces)})
            context = replace(context, settings=settings)
            address = await open_face(name, context, HostPort("127.0.0.1", 0), closing)
            client = Client(service, address)
            closing.push_async_callback(client.close)
            return client

        yield open_
