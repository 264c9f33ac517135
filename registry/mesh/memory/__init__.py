"""Mesh inside one process, for tests and simulations, with the faults that they ask for."""
