"""The benchmark of idle nodes: what a counting node records."""

import json
import struct

from libp2p.stream_muxer.yamux.yamux import YAMUX_HEADER_FORMAT

from bench.idle.node import Counts, season

DATA, PING = 0, 2


class Muxed:
    """The part of a yamux stream that the counter reads."""

    def __init__(self, conn: object, stream_id: int) -> None:
        self.conn = conn
        self.stream_id = stream_id


class Stream:
    def __init__(self, muxed: Muxed) -> None:
        self.muxed_stream = muxed


def frame(kind: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, 0, stream, len(body)) + body


def test_frames_are_counted_under_the_protocol_that_their_stream_negotiates() -> None:
    counts, one, other = Counts(), object(), object()
    counts.frame(one, frame(DATA, 1, b"negotiation"))
    counts.name(Stream(Muxed(one, 1)), "/ask")
    counts.frame(one, frame(DATA, 1, b"question"))
    counts.frame(other, frame(DATA, 1, b"x"))
    counts.frame(one, frame(PING, 0))
    assert json.loads(counts.written())["kinds"] == {
        "/ask": [2, 12 + 11 + 12 + 8],
        "stream without a protocol": [1, 13],
        "yamux ping": [1, 12],
    }


class Turn:
    """The part of a voice's turn that `season` changes."""

    def __init__(self, last: float) -> None:
        self.last, self.spread = last, 1.0

    def taken(self, now: float, jitter: float) -> None:
        self.last, self.spread = now, 0.75 + 0.5 * jitter


def test_a_seasoned_node_repeats_its_first_announcements_anywhere_in_their_interval() -> None:
    class Seasoned(Turn):
        pass

    season(Seasoned)
    turn = Seasoned(float("-inf"))
    spreads = []
    for number in range(200):
        turn.taken(1.0 + number / 100, 0.5)
        spreads.append(turn.spread)
    assert min(spreads) < 0.1
    assert max(spreads) > 0.9
    turn.taken(100.0, 0.5)
    assert turn.spread == 1.0
