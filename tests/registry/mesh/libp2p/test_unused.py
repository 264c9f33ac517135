"""Parts of libp2p that no node uses: nothing imports what they need, and a peer cannot make a node call them."""

import subprocess
import sys
from pathlib import Path

import libp2p

from registry.mesh.libp2p.unused import UNUSED

ALONE = [
    "Crypto",
    "aioquic",
    "cbor2",
    "coincurve",
    "dns",
    "fastecdsa",
    "grpc",
    "httpx",
    "miniupnpc",
    "requests",
    "sqlite3",
    "trio_websocket",
    "zeroconf",
]
"""Modules that only unused parts import, or a node in a private network, or one that is told to find others by multicast."""

IMPORTED = f"""
import sys, registry.mesh.libp2p.mesh
print([name for name in {ALONE} if name in sys.modules])
"""

SHOWN = """
import registry.mesh.libp2p.mesh
from libp2p.crypto.pb.crypto_pb2 import KeyType, PublicKey
from libp2p.security.noise.messages import NoiseHandshakePayload
from libp2p.security.noise.pb.noise_pb2 import NoiseHandshakePayload as Message

for kind in (KeyType.RSA, KeyType.Secp256k1):
    key = PublicKey(key_type=kind, data=b"a key").SerializeToString()
    try:
        NoiseHandshakePayload.deserialize(Message(identity_key=key, identity_sig=b"-").SerializeToString())
    except ValueError as error:
        print(error)
"""


def told(script: str) -> str:
    # In a process of its own, because tests import some of these modules.
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_only_unused_parts_need_is_not_imported() -> None:
    assert told(IMPORTED) == "[]"


def test_the_unused_parts_are_where_libp2p_has_them() -> None:
    folder = Path(libp2p.__file__).parent.parent
    paths = [folder / name.replace(".", "/") for name in UNUSED]
    assert [str(p) for p in paths if not (p.is_dir() or p.with_suffix(".py").exists())] == []


def test_a_peer_whose_key_is_of_another_kind_is_refused_as_one_whose_key_cannot_be_read() -> None:
    said = told(SHOWN).splitlines()
    assert [line.rpartition(": ")[2] for line in said] == [
        "RSAPublicKey.from_bytes is not a part of nodes",
        "Secp256k1PublicKey.from_bytes is not a part of nodes",
    ]
