"""Guards over the library: one whose target is gone stops the start instead of vanishing."""

import libp2p.pubsub.pubsub as pubsub_module
import pytest
from libp2p.network.swarm import Swarm
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

from registry.errors import MeshDown, PeerUnreachable
from registry.mesh.libp2p.guards import harden, unreachable
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
    with pytest.raises(PeerUnreachable, match="KeyError"), unreachable("the peer"):
        raise KeyError("anything")
