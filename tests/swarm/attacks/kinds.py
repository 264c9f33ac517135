"""Which attacks are there? All of them by name, in the order in which a stranger gets deeper into a node."""

from collections.abc import Mapping

from tests.swarm.attacks import before, comparisons, floods, gossip, muxer, poison, streams
from tests.swarm.attacks.target import Attack

MALFORMED: Mapping[str, Attack] = {
    **before.KINDS,
    **muxer.KINDS,
    **streams.KINDS,
    **gossip.KINDS,
}
"""What nobody may believe, and what makes no sense."""

FLOODS: Mapping[str, Attack] = {**floods.KINDS, **comparisons.KINDS, **poison.KINDS}
"""What everybody may believe, and too much of it."""

KINDS: Mapping[str, Attack] = {**MALFORMED, **FLOODS}
