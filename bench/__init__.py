"""Measurements that the project takes of itself, and simulations with its own parts."""
