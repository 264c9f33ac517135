"""What can go wrong while keeping the registry.

RegistryError
├── InvalidFrame          bytes that are no frame of ours: too long, wrong shape
│   ├── UnknownKind       what a newer version may have meant: passed over, and nobody's fault
│   └── InvalidSignature  a frame whose signature does not belong to the node it speaks for
├── LimitReached          a named limit is full; the newcomer is refused, nothing grows
├── StoreUnavailable      the store did not take or give what was asked; say so, serve on
└── MeshError
    ├── MeshDown          our own mesh is not running now; it is being restarted
    └── PeerUnreachable   one peer could not be asked
"""


class RegistryError(Exception):
    """The root of this package's errors."""


class InvalidFrame(RegistryError):
    """These bytes are no frame that this version understands."""


class UnknownKind(InvalidFrame):
    """A frame or question of a version or kind that is not known here."""


class InvalidSignature(InvalidFrame):
    """The signature does not match the node that the frame speaks for."""


class LimitReached(RegistryError):
    """A named limit is full, so the newcomer is refused."""


class StoreUnavailable(RegistryError):
    """The store could not do what was asked, within its time."""


class MeshError(RegistryError):
    """The mesh could not do what was asked."""


class MeshDown(MeshError):
    """This node's mesh is not running at the moment."""


class PeerUnreachable(MeshError):
    """A peer could not be reached, or did not answer in time."""
