"""Faces over gRPC: how they are opened, and how their callers see our errors."""

import logging
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.auth.access import Access
from node.auth.keys import Allowance
from node.config.addresses import HostPort
from node.config.settings import FacesSettings, KeylessAccess, Settings
from node.config.web import WebSettings
from node.faces import grpc
from registry.errors import RegistryError
from registry.mesh.memory import MemoryNet
from router.errors import NoCapacity, UnknownModel
from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, REMOTELLM
from router.rpc.server import RpcRefused
from tests.node.faces.assembly import TOKEN, World, node, settings_of

ROOT = Path(__file__).parents[4]


def test_every_face_has_a_setting_of_its_name():
    assert set(grpc.NAMES) <= set(FacesSettings.model_fields)


def test_faces_are_closed_unless_their_setting_names_an_address():
    assert grpc.places(Settings().faces) == {}
    addresses = grpc.places(FacesSettings(remotellm="127.0.0.1:9"))
    assert addresses == {"remotellm": HostPort("127.0.0.1", 9)}


async def test_an_address_in_use_is_reported_in_a_sentence(alone):
    async with AsyncExitStack() as closing:
        address = HostPort("127.0.0.1", 0)
        taken = await grpc.open_face("remotellm", alone.context, address, closing)
        with pytest.raises(OSError, match="cannot listen"):
            await grpc.open_face("remotellm", alone.context, taken, closing)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModel("none"), "NOT_FOUND"),
        (NoCapacity("full", retry_after=3), "RESOURCE_EXHAUSTED"),
        (RegistryError("x"), "INTERNAL"),
        (ZeroDivisionError("a secret prompt"), "INTERNAL"),
    ],
)
def test_every_error_is_a_status(error, code, caplog):
    caplog.set_level(logging.DEBUG)
    refused = grpc.refuse(error)
    assert isinstance(refused, RpcRefused)
    assert refused.code == code
    assert "secret" not in str(refused) + caplog.text


def test_without_grpc_installed_the_error_says_what_to_install():
    program = """
import asyncio, sys
from contextlib import AsyncExitStack
sys.modules["grpc"] = None
from node.config.addresses import HostPort
from node.faces import grpc

async def main():
    async with AsyncExitStack() as closing:
        try:
            await grpc.open_face("remotellm", None, HostPort("127.0.0.1", 0), closing)
        except OSError as error:
            print(error)

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert "make extras, or pip install 'modelvine[grpc]'" in ran.stdout, ran.stderr


class TestKeysOfTheSite:
    """A face without a file of keys accepts users' keys, and callers that need none by the node's setting."""

    @pytest.fixture
    async def closed(self, worker):
        async with node(World(MemoryNet()), settings_of(keyless=KeylessAccess.MACHINE)) as running:
            await running.register(worker)
            yield running

    @staticmethod
    def by(running, uid):
        table = SimpleNamespace(owner=lambda here, there: uid)
        access = Access(token=TOKEN, keys=running.context.keys, sockets=table)
        return replace(running.context, access=access)

    async def asked(self, name, client, key):
        if name == "remotellm":
            return await client.ask("GetLlmType", api_key=f"{key}@tiny")
        client.said = {"x-model": "tiny", "authorization": f"Bearer {key}"}
        return await client.ask("Predict", Prompt="hi")

    @pytest.mark.parametrize(("name", "service"), [("remotellm", REMOTELLM), ("localai", LOCALAI)])
    async def test_open_the_models_that_they_are_for(self, closed, opened, name, service):
        keys = closed.context.keys
        made = await keys.create({"ann": Allowance(), "bob": Allowance(models=("llama*",))})
        client = await opened(name, service, self.by(closed, 33))
        await self.asked(name, client, made["ann"])
        for key, code in (
            ("", "UNAUTHENTICATED"),
            ("mv_wrong", "UNAUTHENTICATED"),
            (made["bob"], "PERMISSION_DENIED"),
        ):
            with pytest.raises(RpcFailed) as failed:
                await self.asked(name, client, key)
            assert failed.value.code == code
        await keys.revoke("ann")
        with pytest.raises(RpcFailed) as failed:
            await self.asked(name, client, made["ann"])
        assert "revoked" in failed.value.words

    @pytest.mark.parametrize("uid", [0, 1_000])
    async def test_are_not_needed_by_users_of_this_machine(self, closed, opened, uid):
        client = await opened("remotellm", REMOTELLM, self.by(closed, uid))
        await self.asked("remotellm", client, "any")


@pytest.mark.parametrize(("name", "service"), [("remotellm", REMOTELLM), ("localai", LOCALAI)])
@pytest.mark.parametrize(("uid", "limited"), [(33, True), (0, False)])
async def test_callers_without_a_key_are_limited_by_address_over_grpc_too(
    worker, opened, name, service, uid, limited
):
    web = WebSettings(rpm_per_address=1)
    async with node(World(MemoryNet()), settings_of(web=web)) as running:
        await running.register(worker)
        table = SimpleNamespace(owner=lambda here, there: uid)
        access = Access(token=TOKEN, settings=web, keyless=KeylessAccess.EVERYBODY, sockets=table)
        client = await opened(name, service, replace(running.context, access=access))

        async def ask():
            if name == "remotellm":
                return await client.ask("Generate", api_key="any@tiny", prompts=["hi"])
            client.said = {"x-model": "tiny"}
            return await client.ask("Predict", Prompt="hi")

        await ask()
        if limited:
            with pytest.raises(RpcFailed) as failed:
                await ask()
            assert failed.value.code == "RESOURCE_EXHAUSTED"
        else:
            await ask()
