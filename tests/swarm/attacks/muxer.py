"""Attacks inside the encryption: yamux frames that make no sense, or too many of them."""

import struct
from collections.abc import Callable, Mapping

import trio

from tests.swarm.attacks.target import ASK, Attack, Peer, Target, prefixed

DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
MULTISTREAM = prefixed(b"/multistream/1.0.0\n")


def frame(
    kind: int, flags: int, stream: int, length: int, body: bytes = b"", *, version: int = 0
) -> bytes:
    """Return a yamux frame, whose fields need not fit each other."""
    return struct.pack("!BBHII", version, kind, flags, stream, length) + body


def _below(make: Callable[[Target], bytes]) -> Attack:
    async def attack(target: Target) -> None:
        async with target.peer() as peer:
            data = make(target)
            with trio.move_on_after(3):
                for start in range(0, len(data), 60_000):
                    await peer.write_below(data[start : start + 60_000])
                await trio.sleep(0.1)

    return attack


async def window_overflow(target: Target) -> None:
    async with target.peer() as peer:
        await peer.write_below(frame(WINDOW, SYN, 101, 0) + _data(101, MULTISTREAM))
        with trio.move_on_after(2):
            for _ in range(64):
                await peer.write_below(_data(101, bytes(60_000)))


async def streams_that_stay_open(target: Target) -> None:
    async with target.peer() as peer:
        with trio.move_on_after(3):
            for number in range(300):
                await peer.write_below(frame(WINDOW, SYN, 201 + 2 * number, 0))
            await trio.sleep(0.5)


async def streams_that_negotiate_and_wait(target: Target) -> None:
    async with target.peer() as peer:
        with trio.move_on_after(3):
            for _ in range(100):
                await peer.host.new_stream(peer.victim, [ASK])
            await trio.sleep(0.5)


async def negotiation_garbage(target: Target) -> None:
    async with target.peer() as peer:
        for number, data in enumerate(
            (b"\xff" * 64, b"\0" * 64, prefixed(b"\xff\xfe\n"), MULTISTREAM + prefixed(b"x" * 5000))
        ):
            await _open(peer, 301 + 2 * number, data)
        await trio.sleep(0.1)


async def _open(peer: Peer, stream: int, data: bytes) -> None:
    await peer.write_below(frame(WINDOW, SYN, stream, 0) + _data(stream, data))


def _data(stream: int, body: bytes) -> bytes:
    return frame(DATA, 0, stream, len(body), body)


KINDS: Mapping[str, Attack] = {
    "garbage inside noise": _below(lambda t: t.random.randbytes(200_000)),
    "yamux frames of unknown types": _below(
        lambda _: b"".join(frame(k, 0, 1, 0) for k in range(4, 256))
    ),
    "yamux frames of another version": _below(lambda _: frame(DATA, SYN, 1, 0, version=9) * 10),
    "huge yamux windows": _below(
        lambda _: frame(WINDOW, SYN, 9, 2**32 - 1) + frame(WINDOW, 0, 9, 2**32 - 1) * 100
    ),
    "frames for unknown streams": _below(
        lambda _: b"".join(
            _data(n, b"lost") + frame(WINDOW, RST, n, 0) for n in range(999, 3999, 2)
        )
    ),
    "a frame of 4 GiB announced": _below(
        lambda _: frame(WINDOW, SYN, 11, 0) + frame(DATA, 0, 11, 2**32 - 1)
    ),
    "streams opened twice": _below(lambda _: frame(WINDOW, SYN, 13, 0) * 50),
    "streams with our own numbers": _below(
        lambda _: b"".join(frame(WINDOW, SYN, n, 0) for n in range(2, 40, 2))
    ),
    "a flood of pings": _below(
        lambda t: b"".join(frame(PING, SYN, 0, t.random.getrandbits(32)) for _ in range(5_000))
    ),
    "go away": _below(lambda _: frame(GO_AWAY, 0, 0, 0) + frame(GO_AWAY, 0, 0, 77)),
    "resets and ends of everything": _below(
        lambda _: b"".join(frame(DATA, FIN | RST, n, 0) for n in range(200))
    ),
    "more than the window": window_overflow,
    "300 streams that stay open": streams_that_stay_open,
    "100 questions never asked": streams_that_negotiate_and_wait,
    "garbage instead of a protocol": negotiation_garbage,
}
