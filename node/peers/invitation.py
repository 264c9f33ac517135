"""Invitation for others to join a node that knows nobody: said in words, from the addresses at which it can be dialled."""

from collections.abc import Sequence

from registry.mesh.discovered import only_loopback


def invitation(addresses: Sequence[str], *, private: bool) -> str:
    """Return a sentence for the operator of a lone node; `addresses` are the node's own, the best first."""
    if not addresses:
        return "this node is alone, and cannot be joined while its mesh is down"
    key = " --swarm-key FILE, the same key," if private else ""
    if only_loopback(addresses):
        return (
            "this node is alone, which is no fault: it serves its own models. Nodes of this machine join it with"
            f"{key} --bootstrap {addresses[0]}; for those of other machines, start it with --profile lan"
        )
    outside = next(address for address in addresses if not only_loopback([address]))
    return (
        "this node is alone, which is no fault: it serves its own models. Others join it with"
        f"{key} --bootstrap {outside}"
    )
