"""The library, made silent before it is loaded: its core writes past our log, with the addresses of who is at the other end.

Whoever wants to hear it says so in its own `GRPC_VERBOSITY`.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

__all__ = ["grpc"]
