"""Strangers that were dialled or dialled us: which stay, and which are let go. Time is trio's mock clock, which jumps."""

import random

import trio
from trio.testing import MockClock

from registry.mesh import Origin
from registry.mesh.discovered import DiscoveredPeers
from registry.mesh.libp2p.connections import CALLER_SECONDS, PROOF_SECONDS, Introducer
from registry.mesh.libp2p.watch import InboundPeer
from registry.records import PeerId
from tests.registry.mesh.worlds import identity

PEER = identity("stranger").peer
ADDRESS = f"/ip4/192.0.2.7/tcp/6101/p2p/{PEER}"


class Room:
    """A node, and its watch, whose peers speak our topic from the moment that the test chooses."""

    def __init__(self, *, speaks_at: float) -> None:
        self.speaks_at = speaks_at
        self.dismissed: list[PeerId] = []
        self.changes = 0
        self.inbound: list[InboundPeer] = []
        self.introductions = Introducer(
            DiscoveredPeers(identity("own").peer, loopback=False, rng=random.Random(1)),
            self,
            self,
            changed=self._changed,
        )
        self.introductions.claim(Origin.MDNS, (ADDRESS,))

    def topic_peers(self) -> set[PeerId]:
        spoken = trio.current_time() >= self.speaks_at
        return {PEER, *(caller.peer for caller in self.inbound)} if spoken else set()

    def callers(self) -> list[InboundPeer]:
        return self.inbound

    async def disconnect(self, peer: PeerId) -> None:
        self.dismissed.append(peer)

    def _changed(self) -> None:
        self.changes += 1


def on_a_clock(work) -> None:
    trio.run(work, clock=MockClock(autojump_threshold=0))


def test_a_stranger_of_another_mesh_is_let_go_and_left_alone_for_a_while() -> None:
    async def main() -> None:
        room = Room(speaks_at=float("inf"))
        began = trio.current_time()
        await room.introductions.require_subscription(PEER)
        assert trio.current_time() - began == PROOF_SECONDS
        assert room.dismissed == [PEER]
        assert room.introductions.addresses() == ()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.introductions.reconsider_forever)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert room.changes > 2
        assert room.introductions.addresses() == (ADDRESS,)

    on_a_clock(main)


def test_a_stranger_that_speaks_our_topic_stays() -> None:
    async def main() -> None:
        room = Room(speaks_at=trio.current_time() + 3.0)
        await room.introductions.require_subscription(PEER)
        assert room.dismissed == []
        assert room.introductions.addresses() == (ADDRESS,)
        assert room.introductions.origin(PEER) is Origin.MDNS

    on_a_clock(main)


def test_a_stranger_that_does_not_answer_is_left_alone_for_a_while() -> None:
    async def main() -> None:
        room = Room(speaks_at=0.0)
        room.introductions.note_failure(PEER)
        assert room.introductions.addresses() == ()
        await trio.sleep(60)
        assert room.introductions.addresses() == (ADDRESS,)

    on_a_clock(main)


def test_a_peer_that_dialled_us_and_never_speaks_our_topic_is_let_go_after_a_while() -> None:
    async def main() -> None:
        room = Room(speaks_at=float("inf"))
        room.inbound = [InboundPeer(PEER, "192.0.2.7", trio.current_time())]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.introductions.reconsider_forever)
            await trio.sleep(CALLER_SECONDS - 1)
            assert room.dismissed == []
            await trio.sleep(CALLER_SECONDS)
            assert room.dismissed[0] == PEER
            nursery.cancel_scope.cancel()

    on_a_clock(main)


def test_a_peer_that_dialled_us_and_speaks_our_topic_stays() -> None:
    async def main() -> None:
        room = Room(speaks_at=trio.current_time() + 20.0)
        room.inbound = [InboundPeer(PEER, "192.0.2.7", trio.current_time())]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.introductions.reconsider_forever)
            await trio.sleep(10 * CALLER_SECONDS)
            nursery.cancel_scope.cancel()
        assert room.dismissed == []

    on_a_clock(main)
