"""Simulation of many nodes in one process under a virtual clock: the registry's own core, on a model of the network."""
