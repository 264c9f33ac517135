"""Hostile peers: they take part in the mesh with our own library, and send what they must not.

One peer hears everything and does no harm. Other peers join to send the bad frames, a few offences each: a node cuts off a
peer that goes on and on, and then nothing arrives any more. The process reads one command a line and answers each with one
line of JSON: `python -m tests.lab.hostile LISTEN NODE...`.

    forge PEER     records in the name of a node, with another key, another body, a later version
    bad NUMBER     records with made-up signatures
    replay         every frame again that was heard until the first replay
    flood NUMBER   records of that many identities, each properly signed
"""

import asyncio
import json
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from registry import wire
from registry.catalog import Signed
from registry.errors import PeerUnreachable
from registry.intake.newcomers import AT_ONCE
from registry.mesh import Arrived, Pipe
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.records import Record, Service, Version
from registry.settings import MeshSettings
from registry.signing import SIGNATURE_BYTES, Identity
from registry.sync import EQUAL

_EACH = 8
"""Bad frames that one identity gossips and pushes: sixteen offences at each node, of the twenty that are forgiven."""

_AT_ONCE = 4
"""Identities that take part at one time."""

_SETTLE = 1.0
"""Seconds until gossip to the dialled nodes flows: a heartbeat of gossipsub."""

_MOST_REPLAYED = 160
"""Frames. An address may open some hundred connections in a minute, and each identity needs one."""

_FRAME = struct.Struct(">fI")
_KEY = slice(2, 34)
_SIGNATURE = slice(34, wire.HEADER_BYTES)


class Hostile:
    """Peer that hears and remembers everything, and has other peers send frames, by gossip and in comparisons alike."""

    def __init__(self, listen: str, *nodes: str) -> None:
        self._elsewhere = listen.rpartition("/")[0] + "/0"
        self._nodes = nodes
        self._identity = Identity(os.urandom(32))
        self._listen_at = listen
        self._heard: list[bytes] = []
        self._captured: list[bytes] = []

    async def run(self) -> None:
        """Join, then do what standard input says until it ends."""
        async with (
            self._taking_part(self._identity, self._listen_at) as mesh,
            asyncio.TaskGroup() as group,
        ):
            listening = group.create_task(self._listen(mesh))
            print(json.dumps({"peer": self._identity.peer}), flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                verb, *rest = line.split()
                began = time.monotonic()
                report = await self._do(verb, *rest)
                print(json.dumps({**report, "seconds": time.monotonic() - began}), flush=True)
            listening.cancel()

    async def _do(self, verb: str, argument: str = "") -> dict[str, int]:
        if verb == "heard":
            return {"frames": len(self._heard)}
        if verb == "flood":
            return await self._flood(int(argument))
        if verb == "forge":
            frames = list(self._forgeries(argument))
        elif verb == "bad":
            frames = [_broken(_record(Identity(os.urandom(32)))) for _ in range(int(argument))]
        else:
            # The oldest frames, since the models in them were withdrawn later.
            self._captured = self._captured or self._heard[:_MOST_REPLAYED]
            frames = self._captured
        return await self._each(
            [frames[start : start + _EACH] for start in range(0, len(frames), _EACH)]
        )

    def _forgeries(self, victim: str) -> Iterable[bytes]:
        """Yield forgeries of the victim's next twenty records, each with three wrong signatures."""
        messages = map(wire.decode, self._heard)
        *_, last = (w for w in messages if isinstance(w, Signed) and w.record.node == victim)
        key, signature = last.frame[_KEY], last.frame[_SIGNATURE]
        for ahead in range(1, 21):
            version = Version(last.record.version.epoch + ahead, 1)
            services = (Service("forged", f"forged-{ahead}"),)
            later = replace(last.record, version=version, services=services)
            own = wire.encode_record(later, self._identity).frame
            body = own[wire.HEADER_BYTES :]
            for wrong in (own[_SIGNATURE], signature, bytes(SIGNATURE_BYTES)):
                yield own[:2] + key + wrong + body

    async def _flood(self, identities: int) -> dict[str, int]:
        """Push records through as many peers as it takes to get all of them in."""
        frames = [_record(Identity(os.urandom(32))) for _ in range(identities)]
        parts = [frames[start : start + AT_ONCE] for start in range(0, len(frames), AT_ONCE)]
        return await self._each(parts, together=True)

    async def _each(
        self, parts: Sequence[list[bytes]], *, together: bool = False
    ) -> dict[str, int]:
        """Send each part through a peer of its own; return what was sent and what came of it."""
        counts: Counter[str] = Counter(identities=len(parts), frames=sum(map(len, parts)))
        rest = iter(parts)

        async def go_on() -> None:
            for part in rest:
                async with self._taking_part(Identity(os.urandom(32)), self._elsewhere) as mesh:
                    counts.update(await self._say(mesh, part, together=together))

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(go_on())
        return dict(counts)

    async def _say(self, mesh: LibP2PMesh, frames: list[bytes], *, together: bool) -> Counter[str]:
        """Push frames to every neighbour, all in one push; or publish them, and push each alone."""
        counts: Counter[str] = Counter(pushes_taken=0, pushes_refused=0)
        if not together:
            await asyncio.sleep(_SETTLE)
            for frame in frames:
                await mesh.publish(frame)
        for connection in mesh.connections():
            for batch in [frames] if together else [[frame] for frame in frames]:
                question = b"P" + b"".join(_FRAME.pack(0.0, len(f)) + f for f in batch)
                try:
                    await mesh.ask(connection.peer, question, timeout=5)
                except PeerUnreachable:
                    counts["pushes_refused"] += 1
                else:
                    counts["pushes_taken"] += 1
        return counts

    @asynccontextmanager
    async def _taking_part(self, identity: Identity, listen: str) -> AsyncIterator[LibP2PMesh]:
        mesh = LibP2PMesh(identity, MeshSettings(listen=(listen,)))
        await mesh.start(_agree, _serve_nothing)
        try:
            await asyncio.gather(*(mesh.connect(node, timeout=10) for node in self._nodes))
            yield mesh
        finally:
            await mesh.stop()

    async def _listen(self, mesh: LibP2PMesh) -> None:
        async for event in mesh.events():
            if isinstance(event, Arrived) and len(self._heard) < 20_000:
                self._heard.append(event.frame)


def _record(identity: Identity) -> bytes:
    spam = Service("spam", f"spam-{identity.peer[-12:]}")
    record = Record(identity.peer, Version(int(time.time() * 1000), 1), services=(spam,))
    return wire.encode_record(record, identity).frame


def _broken(frame: bytes) -> bytes:
    return frame[:34] + os.urandom(SIGNATURE_BYTES) + frame[wire.HEADER_BYTES :]


async def _agree(_peer: str, question: bytes) -> bytes:
    """Answer each comparison with "equal": nonsense would be an offence, and silence a reason for doubt."""
    return EQUAL if question.startswith(b"c") else b""


async def _serve_nothing(pipe: Pipe) -> None:
    await pipe.reset()


if __name__ == "__main__":
    asyncio.run(Hostile(*sys.argv[1:]).run())
