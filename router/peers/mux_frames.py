"""Frames of a shared connection, which are yamux's, and the events that they mean to their receiver.

A frame is a version (u8), a kind (u8), flags (u16), a stream (u32), a number (u32), all big endian; a `DATA` frame is followed
by as many bytes as the number says.
"""

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

FRAME = struct.Struct("!BBHII")
VERSION = 0

PLAIN_DATA = struct.Struct("!4xII")
"""Header of a `DATA` frame without flags."""

BRIEF = struct.Struct("!III")
"""Header of a frame whose version, kind and flags are read as one number: 0 for `DATA` without flags."""


class FrameType(IntEnum):
    """Kind of a frame."""

    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntFlag):
    """Flags of a frame."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class Opened(NamedTuple):
    """The other side opened a stream."""

    stream: int


class Received(NamedTuple):
    """Bytes of a stream came; call `Mux.consumed` when its reader has taken them."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The other side sends nothing more on a stream."""

    stream: int


class StreamCut(NamedTuple):
    """The other side reset a stream; `taken` says whether it had accepted the stream at all."""

    stream: int
    taken: bool


class GoneAway(NamedTuple):
    """The other side takes no new streams; those that it has accepted go on."""


class Answered(NamedTuple):
    """The other side answered a ping: it is alive."""


Event = Opened | Received | Ended | StreamCut | GoneAway | Answered
