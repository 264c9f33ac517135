"""Demonstration: three nodes and a small language model on one machine."""
