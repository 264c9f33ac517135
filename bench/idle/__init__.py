"""Traffic of idle nodes."""

# Must come before any other import of libp2p, as only a part of its dependencies is installed.
import registry.mesh.libp2p  # noqa: F401
