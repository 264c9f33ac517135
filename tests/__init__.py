"""Tests of all that is here."""

# Before anything imports libp2p: of what that requires only a part is installed.
import registry.mesh.libp2p  # noqa: F401
