"""Attacks of a hostile peer: one module for each depth of the mesh; `__main__` is the process that sends them.

Every kind of attack is a function of a module's `KINDS`. What it sends follows from the seed.
"""
