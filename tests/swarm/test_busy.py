"""Does a machine's load reach the other nodes? Real nodes, a worker held busy, and a stranger that lies about it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from registry import wire
from registry.mesh import Arrived, Pipe
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.records import Load, LoadNote, PeerId
from registry.settings import MeshSettings
from registry.signing import SIGNATURE_BYTES, Identity
from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

MODEL = "busy-model"
HELD = 4
MOST_REPEATED = 10
"""Some twenty offences cost a liar its connection."""


class Stranger:
    """A peer of the mesh that has no record, hears everything, and says what it likes."""

    def __init__(self, bootstrap: str) -> None:
        self.identity = Identity(bytes(range(1, 33)))
        settings = MeshSettings(listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=(bootstrap,))
        self.mesh = LibP2PMesh(self.identity, settings)
        self.heard: list[bytes] = []

    async def listen(self) -> None:
        async for event in self.mesh.events():
            if isinstance(event, Arrived):
                self.heard.append(event.frame)

    def loads_of(self, peer: str) -> list[LoadNote]:
        loads = (frame for frame in self.heard if frame[1] == wire.LOAD)
        messages = map(wire.decode, loads)
        return [
            message
            for message in messages
            if isinstance(message, LoadNote) and message.node == peer
        ]

    def lies(self, about: PeerId) -> Iterable[bytes]:
        """Yield loads that were heard before, loads in another node's name, and the stranger's own."""
        yield from [frame for frame in self.heard if frame[1] == wire.LOAD][-MOST_REPEATED:]
        last = self.loads_of(about)[-1]
        frightening = replace(last, beat=last.beat + 1_000, rows=((0, Load(60_000)),))
        ours = wire.encode_load(replace(frightening, node=self.identity.peer), self.identity)
        theirs = wire.encode_load(last, self.identity)
        for frame in (ours, theirs):
            signature, body = frame[34 : wire.HEADER_BYTES], frame[wire.HEADER_BYTES :]
            for wrong in (signature, bytes(SIGNATURE_BYTES)):
                yield frame[:2] + _key_of(self.heard, about) + wrong + body
        yield ours


def _key_of(frames: Iterable[bytes], peer: PeerId) -> bytes:
    return next(frame[2:34] for frame in frames if wire.author_of(frame) == peer)


@asynccontextmanager
async def stranger(bootstrap: str) -> AsyncIterator[Stranger]:
    async def say_nothing(_peer: str, _question: bytes) -> bytes:
        return b""

    async def refuse(pipe: Pipe) -> None:
        await pipe.reset()

    node = Stranger(bootstrap)
    await node.mesh.start(say_nothing, refuse)
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(node.listen())
        try:
            yield node
        finally:
            listening.cancel()
    await node.mesh.stop()


@asynccontextmanager
async def held(client: Client, node: Node, count: int) -> AsyncIterator[None]:
    """Hold so many streams open at a node's own worker; none of them ends."""
    body = {"model": MODEL, "messages": PROMPT, "stream": True}
    async with AsyncExitStack() as open_streams:
        for _ in range(count):
            request = client.session.post(
                f"{node.http}/v1/chat/completions",
                json=body,
                headers={"x-modelvine-node": node.peer},
            )
            response = await open_streams.enter_async_context(request)
            assert response.status == 200
            await response.content.readuntil(b"\n\n")
        yield


async def explained(client: Client, node: Node) -> dict[str, dict[str, Any]]:
    """Return how a node would route the model, by the peer that would answer."""
    body = await client.get(node, f"/api/v1/route?model={MODEL}")
    return {candidate["node"]: candidate for candidate in body["candidates"]}


async def seen_at(client: Client, node: Node, of: Node) -> tuple[int, float]:
    """Return how many requests a node thinks are at another's replica, and how old that note is in seconds."""
    load = (await explained(client, node))[of.peer]["load"]
    return (-1, 0.0) if load is None else (load["in_flight"], load["age"])


@pytest.fixture
async def served_twice(three: list[Node], client: Client) -> AsyncIterator[list[Node]]:
    """The three nodes, while the first two of them serve one model whose streams do not end."""
    async with running() as worker:
        worker.fail(delay_between=60)
        for node in three[:2]:
            await client.register(node, "busy", [MODEL], worker.url)
        await client.listed(three, MODEL)
        await client.agreed(three)
        yield three
        for node in three[:2]:
            await client.unregister(node, "busy")


async def test_other_nodes_see_a_busy_replica_and_ask_the_idle_one(
    served_twice: list[Node], client: Client
) -> None:
    one, two, three = served_twice
    async with held(client, one, HELD):

        async def known() -> bool:
            in_flight, age = await seen_at(client, three, one)
            return in_flight == HELD and age <= 2

        after = await until(known, within=5, otherwise="the load is not known")
        explanations = [await explained(client, three) for _ in range(20)]
        assert all(candidates[two.peer]["chosen"] for candidates in explanations)
        answers = [await client.chat(three, MODEL) for _ in range(10)]
        assert {answer.node for answer in answers} == {two.peer}
        assert not [answer for answer in answers if "x-modelvine-load" in answer.headers]
        row = explanations[0][one.peer]
        show(
            "busy replica", known_elsewhere_after=after, age=row["load"]["age"], score=row["score"]
        )

    async def idle() -> bool:
        return (await seen_at(client, three, one))[0] == 0

    show("its end", known_after=await until(idle, within=5, otherwise="still thought busy"))


async def test_forged_and_repeated_loads_and_those_of_strangers_change_nothing(
    served_twice: list[Node], client: Client
) -> None:
    one, _, three = served_twice
    async with stranger(three.p2p) as liar:
        async with held(client, one, HELD):

            async def overheard() -> bool:
                notes = liar.loads_of(one.peer)
                return any(load.in_flight == HELD for note in notes for _, load in note.rows)

            await until(overheard, within=15, otherwise="the stranger hears nothing")

        async def idle() -> bool:
            return (await seen_at(client, three, one))[0] == 0

        await until(idle, within=5, otherwise="still thought busy")
        then = await client.events(three)
        before = await explained(client, three)
        lies = [*liar.lies(PeerId(one.peer))]
        for frame in lies:
            await liar.mesh.publish(frame)

        async def all_dropped() -> bool:
            new = await client.events(three) - then
            # All but the last claim to be another node's; that one is of a node without a record.
            return new["frames_bad"] == len(lies) - 1 and new["loads_dropped"] >= 1

        await until(all_dropped, within=10, otherwise="some lies did not arrive")
        after = await explained(client, three)
        show("lies", told=str(len(lies)))
        for peer in before:
            was, now = before[peer]["load"], after[peer]["load"]
            if was is not None:
                # The same load, only older.
                assert now["age"] > was["age"]
                assert now | {"age": 0} == was | {"age": 0}
            else:
                assert now is None
