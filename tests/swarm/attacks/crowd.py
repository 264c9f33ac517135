"""A crowd that takes every place: members from several addresses that subscribe, or reserve at a relay, and do nothing else.

`python -m tests.swarm.attacks.crowd ADDRESS MEMBERS RESERVING` prints a line when all are connected, and stays. A member
that is sent away comes again after a while.
"""

import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from itertools import cycle
from random import Random
from typing import Any

import trio
from libp2p.pubsub.pb import rpc_pb2
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage

from registry.mesh.libp2p.relay import HOP
from tests.swarm.attacks.target import MESHSUB, TOPIC, Peer, Target, prefixed

FROM = tuple(f"127.0.0.{last}" for last in range(11, 17))
RESERVING_FROM = "127.0.0.17"
AGAIN = 10.0
AT_ONCE = 8

_from: ContextVar[str] = ContextVar("_from")
_open = trio.open_tcp_stream


async def subscribe(peer: Peer) -> None:
    subscription = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
    stream = await peer.host.new_stream(peer.victim, [MESHSUB])
    await stream.write(prefixed(subscription.SerializeToString()))


async def reserve(peer: Peer) -> None:
    await subscribe(peer)
    request = HopMessage(type=HopMessage.RESERVE).SerializeToString()
    await peer.say(HOP, prefixed(request), wait=5)


async def stay(
    target: Target,
    address: str,
    do: Callable[[Peer], Awaitable[None]],
    semaphore: trio.Semaphore,
    *,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stay connected until the end, from an address of this machine."""
    _from.set(address)
    identity = target.identity()
    while True:
        await semaphore.acquire()
        try:
            async with target.peer(identity) as peer:
                with trio.move_on_after(10):
                    await do(peer)
                semaphore.release()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                # Polled: it is the library that loses a connection.
                while peer.host.get_network().get_connections(peer.victim):  # noqa: ASYNC110
                    await trio.sleep(1)
        except Exception as refused:  # noqa: BLE001 (whatever the victim does, come again)
            print(type(refused).__name__, refused, file=sys.stderr)
            semaphore.release()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
        await trio.sleep(AGAIN)


async def main(address: str, members: str, reserving: str) -> None:
    """Fill all places, say so, and stay."""

    async def from_there(host: str, port: int) -> trio.SocketStream:
        return await _open(host, port, local_address=_from.get())

    trio.open_tcp_stream = from_there  # type: ignore[assignment]
    target, semaphore = Target(address, Random(1)), trio.Semaphore(AT_ONCE)
    crowd = [(a, subscribe) for a, _ in zip(cycle(FROM), range(int(members)), strict=False)]
    crowd += [(RESERVING_FROM, reserve)] * int(reserving)
    async with trio.open_nursery() as nursery, trio.open_nursery() as starting:
        for there, do in crowd:
            starting.start_soon(nursery.start, stay, target, there, do, semaphore)
        starting.start_soon(_say_when_all_stand, starting)


async def _say_when_all_stand(starting: trio.Nursery) -> None:
    while len(starting.child_tasks) > 1:  # noqa: ASYNC110 (a nursery has no event for it)
        await trio.sleep(0.1)
    print("ready", flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
