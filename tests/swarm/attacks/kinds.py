"""All attacks by name, in the order in which a stranger gets deeper into a node."""

from collections.abc import Mapping

from tests.swarm.attacks import before, comparisons, floods, gossip, muxer, poison, streams
from tests.swarm.attacks.target import Attack

MALFORMED: Mapping[str, Attack] = {
    **before.KINDS,
    **muxer.KINDS,
    **streams.KINDS,
    **gossip.KINDS,
}
"""Input that no node may accept, and input that makes no sense."""

FLOODS: Mapping[str, Attack] = {**floods.KINDS, **comparisons.KINDS, **poison.KINDS}
"""Valid input, and too much of it."""

KINDS: Mapping[str, Attack] = {**MALFORMED, **FLOODS}
