"""Tests of the whole repository."""

# Imported before libp2p itself, of whose requirements only a part is installed.
import registry.mesh.libp2p  # noqa: F401
