"""Soak test of a small swarm."""
