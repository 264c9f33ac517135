"""A peer that means no good: it takes part in the mesh with our own library, and says what it must not.

It reads one command a line and answers each with one line of JSON: `python -m tests.lab.hostile LISTEN BOOTSTRAP`.

    forge PEER     records in the name of a node, with another key, another body, a later version
    bad NUMBER     records with signatures that nobody made
    replay         every frame that was ever heard, again
    flood NUMBER   records of as many identities, each properly signed
"""

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from registry import wire
from registry.catalog import Signed
from registry.errors import PeerUnreachable
from registry.mesh import Arrived, Pipe
from registry.mesh.libp2p import LibP2PMesh
from registry.records import Record, Service, Version
from registry.settings import MeshSettings
from registry.signing import SIGNATURE_BYTES, Identity

_BATCH_BYTES = 256 * 1024
_FRAME = struct.Struct(">fI")
_KEY = slice(2, 34)
_SIGNATURE = slice(34, wire.HEADER_BYTES)


class Hostile:
    """Hears everything and remembers it; says anything, by gossip and in comparisons alike."""

    def __init__(self, listen: str, bootstrap: str) -> None:
        self._identity = Identity(os.urandom(32))
        self._bootstrap = bootstrap
        settings = MeshSettings(listen=(listen,), bootstrap=(bootstrap,))
        self._mesh = LibP2PMesh(self._identity, settings)
        self._heard: list[bytes] = []

    async def run(self) -> None:
        """Join, then do what standard input says until it ends."""
        await self._mesh.start(_say_nothing, _serve_nothing)
        await self._mesh.connect(self._bootstrap, timeout=10)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen())
            print(json.dumps({"peer": self._identity.peer}), flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                verb, *rest = line.split()
                began = time.monotonic()
                said = await self._do(verb, *rest)
                print(json.dumps({**said, "seconds": time.monotonic() - began}), flush=True)
            listening.cancel()
        await self._mesh.stop()

    async def _do(self, verb: str, argument: str = "") -> dict[str, object]:
        if verb == "heard":
            return {"frames": len(self._heard)}
        if verb == "forge":
            frames = list(self._forgeries(argument))
        elif verb == "bad":
            frames = [_broken(_record(Identity(os.urandom(32)))) for _ in range(int(argument))]
        elif verb == "replay":
            frames = list(self._heard)
        else:
            frames = [_record(Identity(os.urandom(32))) for _ in range(int(argument))]
        return {"frames": len(frames), **await self._say(frames)}

    def _forgeries(self, victim: str) -> Iterable[bytes]:
        """Yield frames that say the victim's next twenty words, each with three wrong signatures."""
        words = map(wire.decode, self._heard)
        *_, last = (w for w in words if isinstance(w, Signed) and w.record.node == victim)
        key, signature = last.frame[_KEY], last.frame[_SIGNATURE]
        for ahead in range(1, 21):
            version = Version(last.record.version.epoch + ahead, 1)
            services = (Service("forged", f"forged-{ahead}"),)
            later = replace(last.record, version=version, services=services)
            ours = wire.encode_record(later, self._identity).frame
            body = ours[wire.HEADER_BYTES :]
            for wrong in (ours[_SIGNATURE], signature, bytes(SIGNATURE_BYTES)):
                yield ours[:2] + key + wrong + body

    async def _say(self, frames: list[bytes]) -> dict[str, object]:
        """Publish frames, and push them into every neighbour's registry; return what came of it."""
        refused = 0
        for frame in frames:
            await self._mesh.publish(frame)
        for connection in self._mesh.connections():
            for batch in _batches(frames):
                try:
                    await self._mesh.ask(connection.peer, b"P" + batch, timeout=5)
                except PeerUnreachable:
                    refused += 1
        return {"pushes_refused": refused}

    async def _listen(self) -> None:
        async for event in self._mesh.events():
            if isinstance(event, Arrived) and len(self._heard) < 20_000:
                self._heard.append(event.frame)


def _record(identity: Identity) -> bytes:
    spam = Service("spam", f"spam-{identity.peer[-12:]}")
    record = Record(identity.peer, Version(int(time.time() * 1000), 1), services=(spam,))
    return wire.encode_record(record, identity).frame


def _broken(frame: bytes) -> bytes:
    return frame[:34] + os.urandom(SIGNATURE_BYTES) + frame[wire.HEADER_BYTES :]


def _batches(frames: list[bytes]) -> Iterable[bytes]:
    """Yield each frame alone while they are few, as one bad frame spoils its batch; else as many as fit."""
    batch = b""
    for frame in frames:
        batch += _FRAME.pack(0.0, len(frame)) + frame
        if len(frames) <= 100 or len(batch) > _BATCH_BYTES:
            yield batch
            batch = b""
    if batch:
        yield batch


async def _say_nothing(_peer: str, _question: bytes) -> bytes:
    return b""


async def _serve_nothing(pipe: Pipe) -> None:
    await pipe.reset()


if __name__ == "__main__":
    asyncio.run(Hostile(*sys.argv[1:]).run())
