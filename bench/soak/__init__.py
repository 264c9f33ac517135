"""Soak of a small swarm."""
