"""How does this process live on this machine? Faces, command line, identity, and the composition root."""

__version__ = "0.1.0"
