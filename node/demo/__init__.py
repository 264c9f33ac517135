"""The demonstration: a real worker, so that a fresh machine has something to ask."""
