"""Direct dialling of peers that are connected through a relay, from both ends.

A node behind a NAT cannot be dialled, but it dials the node at the other end of a relayed connection (connection reversal).
"""

import asyncio
from itertools import islice, zip_longest
from math import inf

from registry.clock import Clock
from registry.errors import MeshError
from registry.intake import dialable
from registry.members.backoff import Backoff
from registry.mesh import Mesh
from registry.records import PeerId
from registry.replica import Replica

CHECK_SECONDS = 0.5
"""Seconds between checks of the connections."""

DIAL_WITHIN = 5.0
"""Seconds that a dial may take; no request waits for it."""

AT_ONCE = 4
"""Addresses dialled in one check, and addresses of one peer that are tried."""

_FIRST_PAUSE = 15.0
_LONGEST_PAUSE = 960.0


class DirectDial:
    """Dials peers directly whose connection is relayed. Lives on one event loop."""

    def __init__(self, mesh: Mesh, replica: Replica, *, now: Clock) -> None:
        self._mesh = mesh
        self._replica = replica
        self._now = now
        self._backoff = Backoff[str](_FIRST_PAUSE, _LONGEST_PAUSE)
        self._dialled_at: dict[PeerId, float] = {}
        """When each relayed peer was last dialled."""

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.dial_due()

    async def dial_due(self) -> None:
        """Dial the addresses that relayed peers publish, each after the pause that follows its last failure.

        Peers take turns, those first that were dialled longest ago: one that publishes ever new addresses delays no other.
        """
        now, relayed = self._now(), self._direct_addresses()
        self._dialled_at = {
            peer: dialled_at for peer, dialled_at in self._dialled_at.items() if peer in relayed
        }
        peers = sorted(relayed, key=lambda peer: self._dialled_at.get(peer, -inf))
        due = [[(p, a) for a in relayed[p] if self._backoff.is_due(a, now)] for p in peers]
        async with asyncio.TaskGroup() as dials:
            targets = (target for row in zip_longest(*due) for target in row if target is not None)
            for peer, address in islice(targets, AT_ONCE):
                self._dialled_at[peer] = now
                dials.create_task(self._dial(address))

    def _direct_addresses(self) -> dict[PeerId, list[str]]:
        """Return the addresses that each relayed peer publishes."""
        held = self._replica.catalog.held
        together = dialable.is_local_only(self._replica.own_record.reach)
        return {
            connection.peer: [
                *dialable.direct_addresses(signed.record.reach, connection.peer, together=together)[
                    :AT_ONCE
                ]
            ]
            for connection in self._mesh.connections()
            if connection.relayed and (signed := held.get(connection.peer)) is not None
        }

    async def _dial(self, address: str) -> None:
        try:
            async with asyncio.timeout(DIAL_WITHIN):
                await self._mesh.connect(address, timeout=DIAL_WITHIN)
        except (MeshError, TimeoutError):
            self._backoff.note_failure(address, self._now())
        else:
            self._backoff.forget(address)
