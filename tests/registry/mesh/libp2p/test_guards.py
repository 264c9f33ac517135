"""Guards over the library: one whose target is gone stops the start instead of vanishing."""

import asyncio
import logging
import time

import libp2p.pubsub.pubsub as pubsub_module
import pytest
import trio
import trio.testing
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

from registry.errors import MeshDown, PeerUnreachable
from registry.mesh.libp2p.guards import HardenedGossipSub, OpenRequests, as_unreachable, harden
from registry.mesh.libp2p.host import route_logs
from registry.mesh.libp2p.mesh import LibP2PMesh
from tests.registry.mesh.worlds import echo, identity, return_everything, settings


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pubsub_module, "RpcQueue"),
        (pubsub_module, "SUBSCRIPTION_CHANNEL_SIZE"),
        (pubsub_module.Pubsub, "notify_subscriptions"),
        (pubsub_module.Pubsub, "push_msg"),
        (GossipSub, "_get_in_topic_gossipsub_peers_from_minus"),
        (GossipSub, "_prune_pending_messages"),
        (pubsub_module.Pubsub, "write_msg"),
        (Yamux, "_measure_rtt_loop"),
        (YamuxStream, "_auto_tune_and_send_window_update"),
    ],
)
def test_a_guard_of_the_library_whose_target_is_gone_raises(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harden()
    monkeypatch.delattr(owner, name)
    with pytest.raises(RuntimeError, match=name):
        harden()


async def test_a_mesh_does_not_start_without_a_guard_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Swarm, "unblock_peer")
    mesh = LibP2PMesh(identity("first"), settings())
    with pytest.raises(MeshDown, match="unblock_peer"):
        await mesh.start(echo, return_everything)
    await mesh.stop()


def test_whatever_the_library_raises_means_that_the_peer_is_unreachable() -> None:
    with pytest.raises(PeerUnreachable, match="KeyError"), as_unreachable("the peer"):
        raise KeyError("anything")


def test_messages_for_a_peer_without_a_stream_are_the_newest_and_no_older_than_their_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    route_logs()
    caplog.set_level(logging.DEBUG, "modelvine.mesh")
    gossip = HardenedGossipSub(
        [], 6, 4, 8, max_pending_messages_per_peer=3, pending_messages_ttl=30.0
    )
    now, rpc = time.time(), rpc_pb2.RPC()
    waiting = {
        "few": [now - 20, now],
        "many": [now - 9, now - 8, now - 7, now - 6, now - 5],
        "old": [now - 40, now - 35, now - 7, now - 6],
        "expired": [now - 40, now - 35],
        "none": [],
    }
    for name, times in waiting.items():
        gossip._pending_messages[ID(name.encode())] = [(queued_at, rpc) for queued_at in times]
    for name in (*waiting, "unknown"):
        gossip._prune_pending_messages(ID(name.encode()))
    pending = {
        peer.to_bytes().decode(): queued for peer, queued in gossip._pending_messages.items()
    }
    assert {name: [queued_at for queued_at, _ in queued] for name, queued in pending.items()} == {
        "few": waiting["few"],
        "many": waiting["many"][2:],
        "old": waiting["old"][2:],
    }
    assert not caplog.records


async def test_a_peer_with_most_open_requests_gives_up_its_oldest_for_another() -> None:
    ended: list[str] = []

    async def begin(requests: OpenRequests, name: str, peer: str) -> None:
        try:
            with requests.within(peer, 60):
                await trio.sleep_forever()
        except trio.TooSlowError:
            ended.append(name)

    async def main() -> None:
        requests = OpenRequests(3)
        async with trio.open_nursery() as nursery:
            for name, peer in (
                ("a", "one"),
                ("b", "two"),
                ("c", "two"),
                ("d", "one"),
                ("e", "two"),
            ):
                nursery.start_soon(begin, requests, name, peer)
                await trio.testing.wait_all_tasks_blocked()
            assert requests.full
            nursery.cancel_scope.cancel()
        assert not requests.full

    await asyncio.to_thread(trio.run, main)
    assert ended == ["b", "a"]
