"""Deterministic simulation: whole nodes in one process under a virtual clock, with faults by seed, and invariants."""
