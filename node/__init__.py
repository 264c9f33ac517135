"""Process of a node on its machine: faces, command line, identity, and the composition root."""

__version__ = "0.2.0"
