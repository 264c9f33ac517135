"""Node to be measured: `python -m bench.idle.node [--counts FILE] [--fresh] up …`.

Unless it is fresh, it behaves as if it had run for long: its periodic messages begin after a random part of their interval.
Otherwise all nodes would be silent for minutes after the start, and then all would send at once.

With `--counts` it counts what its streams carry; SIGUSR1 writes the counts to FILE. Frames are counted where yamux passes them to
the encryption, so each frame is one packet, and its bytes exclude noise, TCP and IP.
"""

import argparse
import json
import random
import runpy
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.pubsub.pubsub import Pubsub
from libp2p.stream_muxer.yamux.yamux import YAMUX_HEADER_FORMAT

from registry import own_record
from registry.mesh.libp2p.muxer import GuardedYamux

_STARTING = 30.0
"""Seconds in which a node sends its first messages, and repeats them once it has its first connection."""


def season(turn: Any) -> None:
    """Repeat the messages of a node's first seconds after a random part of their interval."""
    taken: Callable[[Any, float, float], None] = turn.taken
    began: list[float] = []

    def taken_seasoned(self: Any, now: float, jitter: float) -> None:
        taken(self, now, jitter)
        began.append(now)
        del began[1:]
        if now - began[0] < _STARTING:
            self.spread = random.random()

    turn.taken = taken_seasoned


_HEADER = struct.Struct(YAMUX_HEADER_FORMAT)
_TYPES = {2: "yamux ping", 3: "yamux farewell"}
_FRAMES = {1: "record", 2: "heartbeat", 3: "doubt"}
_UNNAMED = "stream without a protocol"


class Counts:
    """Counts of frames and bytes by their purpose."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self._streams: dict[tuple[int, int], list[Any]] = {}
        self._others: dict[str, list[int]] = {}

    def frame(self, connection: object, data: bytes) -> None:
        """Count one frame that is sent."""
        _, kind, _, stream, _ = _HEADER.unpack_from(data)
        if kind in _TYPES:
            entry = self._others.setdefault(_TYPES[kind], [0, 0])
        else:
            entry = self._streams.setdefault((id(connection), stream), [0, 0, _UNNAMED])
        entry[0] += 1
        entry[1] += len(data)

    def name(self, stream: Any, protocol: str) -> None:
        """Note a stream's protocol."""
        muxed: Any = stream.muxed_stream
        key = (id(muxed.conn), muxed.stream_id)
        self._streams.setdefault(key, [0, 0, _UNNAMED])[2] = protocol

    def written(self) -> str:
        """Return the counts as JSON: name → frames, bytes; events by name."""
        kinds = {name: list(entry) for name, entry in self._others.items()}
        for frames, size, protocol in self._streams.values():
            entry = kinds.setdefault(protocol, [0, 0])
            entry[0] += frames
            entry[1] += size
        return json.dumps({"kinds": kinds, "events": self.events})


def _watch(counts: Counts) -> None:
    library: Any = GuardedYamux
    write_frame, set_protocol = GuardedYamux._write_frame, NetStream.set_protocol  # noqa: SLF001
    write_rpc, dial = Pubsub.write_msg, Swarm.dial_peer

    async def counting_write(self: GuardedYamux, data: bytes) -> None:
        counts.frame(self, data)
        await write_frame(self, data)

    def counting_name(self: NetStream, protocol: Any) -> None:
        counts.name(self, str(protocol))
        set_protocol(self, protocol)

    async def counting_rpc(self: Pubsub, stream: Any, rpc: Any) -> bool:
        for message in rpc.publish:
            counts.events[f"gossip {_FRAMES.get(message.data[1], 'other')}"] += 1
        for part in ("ihave", "iwant", "graft", "prune"):
            counts.events[f"gossip {part}"] += len(getattr(rpc.control, part))
        counts.events["gossip rpc bytes"] += rpc.ByteSize()
        return await write_rpc(self, stream, rpc)

    async def counting_dial(self: Swarm, *arguments: Any, **options: Any) -> Any:
        counts.events["dials"] += 1
        return await dial(self, *arguments, **options)

    library._write_frame = counting_write  # noqa: SLF001
    library = NetStream
    library.set_protocol = counting_name
    library = Pubsub
    library.write_msg = counting_rpc
    library = Swarm
    library.dial_peer = counting_dial


def main() -> None:
    """Run the node."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle.node", allow_abbrev=False)
    parser.add_argument("--counts", type=Path, help="file for the counts")
    parser.add_argument("--fresh", action="store_true", help="as after a start")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of the node: up …")
    options = parser.parse_args()
    if not options.fresh:
        season(own_record._RepeatTimer)  # noqa: SLF001
    if file := options.counts:
        counts = Counts()
        _watch(counts)
        signal.signal(signal.SIGUSR1, lambda *_: file.write_text(counts.written()))
    sys.argv = ["node", *options.command]
    runpy.run_module("node", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
