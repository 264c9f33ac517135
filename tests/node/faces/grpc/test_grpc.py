"""How faces over gRPC are opened, and what their callers see of our errors."""

import logging
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from node.config.addresses import HostPort
from node.config.settings import FacesSettings, Settings
from node.faces import grpc
from registry.errors import RegistryError
from router.errors import NoCapacity, UnknownModel
from router.rpc.server import RpcRefused

ROOT = Path(__file__).parents[4]


def test_every_face_has_a_setting_of_its_name():
    assert set(grpc.NAMES) <= set(FacesSettings.model_fields)


def test_faces_are_closed_unless_their_setting_says_where():
    assert grpc.places(Settings().faces) == {}
    found = grpc.places(FacesSettings(remotellm="127.0.0.1:9"))
    assert found == {"remotellm": HostPort("127.0.0.1", 9)}


async def test_a_place_that_is_taken_is_said_in_a_sentence(alone):
    async with AsyncExitStack() as closing:
        place = HostPort("127.0.0.1", 0)
        taken = await grpc.open_face("remotellm", alone.context, place, closing)
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


def test_without_grpc_the_node_says_what_to_install():
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
    assert "pip install 'modelvine[grpc]'" in ran.stdout, ran.stderr
