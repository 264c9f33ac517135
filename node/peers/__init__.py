"""Peers: bootstrap addresses, reachability, and reactions to changes of the mesh."""
