"""Does a newcomer join where idle strangers hold every place, or every reservation of the relay?"""

import re
from functools import partial

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm, python
from tests.swarm.waiting import show, until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

WITHIN = 5.0


async def _is_reachable(client: Client, point: Node, peer: str) -> bool:
    """Whether a node's record says that it is reached through a relay."""
    nodes = (await client.get(point, "/api/v1/nodes"))["nodes"]
    [row] = [row for row in nodes if row["node"] == peer]
    return any("p2p-circuit" in address for address in row["addresses"])


@pytest.mark.parametrize(("members", "reserving"), [(254, 0), (0, 64)])
async def test_newcomers_join_a_crowded_node_and_get_a_place_at_its_relay(
    members: int, reserving: int, swarm: Swarm, client: Client
) -> None:
    suffix = f"{members}-{reserving}"
    point = swarm.start(Start(f"point-{suffix}", {"mesh": {"relay": True}}))
    swarm.start_program(
        f"crowd-{suffix}",
        *python("-m", "tests.swarm.attacks.crowd", point.p2p, str(members), str(reserving)),
    )
    peers = await client.get(point, "/api/v0/swarm/peers")
    reservations = re.search(r'_relaying{what="reservations"} (\S+)', await client.metrics(point))
    assert reservations
    show("the crowd", connections=str(len(peers)), reservations=reservations[1])
    for name in ("first", "second"):
        newcomer = swarm.start(Start(f"{name}-{suffix}", {"mesh": {"nat": "yes"}}), known=[point])
        joined = await client.met([point, newcomer], within=WITHIN)

        placed = await until(
            partial(_is_reachable, client, point, newcomer.peer),
            within=WITHIN,
            otherwise="no place at the relay",
        )
        show(f"{name} newcomer", joined=joined, placed=placed)
