"""Errors of the registry.

RegistryError
├── InvalidFrame          bytes that are no frame of ours: too long, wrong shape
│   ├── UnknownKind       possibly meant by a newer version: skipped, and not an offence
│   └── InvalidSignature  a frame whose signature does not belong to the node it speaks for
├── LimitReached          a named limit is full; the newcomer is refused, nothing grows
├── StoreUnavailable      the store did not read or write what was asked; the node reports it and serves on
└── MeshError
    ├── MeshDown          our own mesh is not running now; it is being restarted
    └── PeerUnreachable   one peer could not be asked
        └── ProtocolViolation  it broke the protocol of a stream
"""

import errno
import os


class RegistryError(Exception):
    """The root of this package's errors."""


class InvalidFrame(RegistryError):
    """These bytes are not a frame that this version understands."""


class UnknownKind(InvalidFrame):
    """The version or kind of the frame or question is unknown."""


class InvalidSignature(InvalidFrame):
    """The signature does not match the node that the frame claims to come from."""


class LimitReached(RegistryError):
    """A named limit is reached, so the new entry is refused."""


class StoreUnavailable(RegistryError):
    """The store did not complete the operation within its timeout.

    `public_reason` is what callers may learn: the reason, without the store's location, which is in the message for the operator.
    """

    def __init__(self, message: str, *, public_reason: str = "the store does not work") -> None:
        super().__init__(message)
        self.public_reason = public_reason


class MeshError(RegistryError):
    """The mesh could not complete the operation."""


class MeshDown(MeshError):
    """This node's mesh is not running."""


class PeerUnreachable(MeshError):
    """A peer is unreachable, or did not answer in time."""


class ProtocolViolation(PeerUnreachable):
    """A peer violated the protocol of its stream; the stream is closed."""


def listen_error_text(address: str, setting: str, error: OSError) -> str:
    """Return why this program cannot listen on a place, and what to do; `setting` names it as operators write it."""
    match error.errno:
        case errno.EADDRINUSE:
            advice = f"another program does, perhaps another node: stop it, or use a free port with {setting}"
        case errno.EADDRNOTAVAIL:
            advice = f"this machine does not have this address: use one of its own with {setting}"
        case errno.EACCES:
            advice = f"this user may not: use a port from 1024 with {setting}"
        case _:
            advice = f"see {setting}"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on {address}: {reason}; {advice}"
