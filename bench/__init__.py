"""Benchmarks of the project, and simulations with its own parts."""
