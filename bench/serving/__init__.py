"""Behaviour of a node under load."""
