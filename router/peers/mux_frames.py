"""Frames of a shared connection, which are yamux's, and the events that they mean to the other side.

A frame is a version (u8), a kind (u8), flags (u16), a stream (u32), a number (u32), all big endian; after `DATA` come as many
bytes as the number says.
"""

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

FRAME = struct.Struct("!BBHII")
VERSION = 0

PLAIN_DATA = struct.Struct("!4xII")
"""A frame of `DATA` without flags."""

BRIEF = struct.Struct("!III")
"""A frame whose version, kind and flags are one number: nothing, where it is a plain one of `DATA`."""


class FrameType(IntEnum):
    """What a frame is about."""

    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntFlag):
    """What a frame says besides."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class Opened(NamedTuple):
    """The other side opened a stream."""

    stream: int


class Received(NamedTuple):
    """Bytes of a stream came; `Mux.consumed` says when its reader has taken them."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The other side sends nothing more on a stream."""

    stream: int


class StreamCut(NamedTuple):
    """The other side wants nothing more of a stream; `taken` says whether it had taken the stream at all."""

    stream: int
    taken: bool


class GoneAway(NamedTuple):
    """The other side takes no new streams; those that it has taken go on."""


class Answered(NamedTuple):
    """The other side answered a ping: it lives."""


Event = Opened | Received | Ended | StreamCut | GoneAway | Answered
