"""Nodes that a request has passed, and the check for a loop: a node may be a worker of another's, so it can.

The header is believed of everybody: who makes one up has its own request refused, and nothing else.
"""

import re

from registry.records import PeerId
from router.errors import BadRequest, Looped
from router.peers.headers import VIA

MOST_NODES = 5
"""Nodes that a request may pass; one that has passed so many is refused as if it had come round."""

_NODE = re.compile(r"[0-9A-Za-z]{1,64}")
_LONGEST = 1024


def onward(said: str, own: PeerId) -> str:
    """Return the header as it leaves this node; raise `Looped`, or `BadRequest` for what names no nodes."""
    if not said:
        return own
    nodes = [node.strip(" \t") for node in said.split(",")] if len(said) <= _LONGEST else []
    if not nodes or not all(map(_NODE.fullmatch, nodes)):
        raise BadRequest(f"{VIA} names the nodes that a request has passed, between commas")
    if own in nodes:
        raise Looped("the request has come round to a node that it had passed")
    if len(nodes) >= MOST_NODES:
        raise Looped(f"the request has passed {MOST_NODES} nodes, and no worker answered")
    return ", ".join((*nodes, own))
