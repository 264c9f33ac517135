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

import errno
import os


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
    """The store could not do what was asked, within its time.

    `told` is what callers may know of it: why, and not where the store is, which stands in the text for the operator.
    """

    def __init__(self, message: str, *, told: str = "the store does not work") -> None:
        super().__init__(message)
        self.told = told


class MeshError(RegistryError):
    """The mesh could not do what was asked."""


class MeshDown(MeshError):
    """This node's mesh is not running at the moment."""


class PeerUnreachable(MeshError):
    """A peer could not be reached, or did not answer in time."""


class ProtocolViolation(PeerUnreachable):
    """A peer sent what breaks the rules of its stream's protocol; nothing more comes of that stream."""


def cannot_listen(place: str, setting: str, error: OSError) -> str:
    """Say why nobody can listen at a place, and what to do; `setting` is what names it, as operators write it."""
    match error.errno:
        case errno.EADDRINUSE:
            advice = f"another program does, perhaps another node: stop it, or name a free port with {setting}"
        case errno.EADDRNOTAVAIL:
            advice = f"this machine has no such address: name one of its own with {setting}"
        case errno.EACCES:
            advice = f"this user may not: name a port from 1024 with {setting}"
        case _:
            advice = f"see {setting}"
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on {place}: {why}; {advice}"
