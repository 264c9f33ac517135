"""Diallers of shared connections: what a lost connection tells about the path is remembered for a while."""

import asyncio

import pytest

from router.http.connection import Connection
from router.peers.muxed import MuxedConnection
from router.peers.shared_pool import SMALL_SECONDS, STREAMS, SharedDial, SharedPool
from router.settings import RouterSettings


@pytest.mark.parametrize(
    ("loses_large", "waited", "small"),
    [(True, SMALL_SECONDS, True), (True, SMALL_SECONDS + 1, False), (False, 0.0, False)],
    ids=["for ten minutes", "no longer", "only if large ones were lost"],
)
async def test_packets_are_small_once_large_ones_were_lost(
    monkeypatch: pytest.MonkeyPatch, *, loses_large: bool, waited: float, small: bool
) -> None:
    asked: list[bool] = []

    async def dial(make: object, /, *, small_packets: bool = False) -> None:
        asked.append(small_packets)
        raise ConnectionRefusedError

    pool = SharedPool(dial, RouterSettings())
    shared = SharedDial(dial, pool, STREAMS)
    lost = MuxedConnection(shared)
    lost.was_stuck, lost.loses_large = True, loses_large
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    shared.remove_connection(lost)
    monkeypatch.setattr(loop, "time", lambda: now + waited)
    with pytest.raises(ConnectionRefusedError):
        await shared(lambda: Connection(pool))
    assert asked == [small]
