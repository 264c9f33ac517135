"""What may a peer send that means harm? One module for each depth of the mesh; `__main__` is the process that sends it.

Every kind of attack is a function of a module's `KINDS`. What it sends follows from the seed.
"""
