"""Peers that this node keeps connected: its bootstrap addresses, how others reach it, and what follows from changes."""
