"""Attacks before and during the handshake: bytes on the port, and a noise handshake that lies."""

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.security.noise.patterns import PatternXX

from tests.swarm.attacks.target import Attack, Target, prefixed

MULTISTREAM = prefixed(b"/multistream/1.0.0\n")
NOISE = prefixed(b"/noise\n")


async def _write(target: Target, *parts: bytes, pause: float = 0.0, wait: float = 0.1) -> None:
    async with await target.tcp() as stream:
        # The victim may hang up early.
        with suppress(trio.BrokenResourceError):
            for part in parts:
                await stream.send_all(part)
                await trio.sleep(pause)
            with trio.move_on_after(wait):
                while await stream.receive_some(4096):
                    pass


async def garbage(target: Target) -> None:
    for _ in range(40):
        await _write(target, target.random.randbytes(target.random.randrange(1, 4096)), wait=0.01)


async def half_a_multistream(target: Target) -> None:
    for end in range(1, len(MULTISTREAM)):
        await _write(target, MULTISTREAM[:end], wait=0.01)


async def huge_length_prefixes(target: Target) -> None:
    for prefix in (b"\xff" * 9 + b"\x01", b"\xff" * 64, b"\xff\xff\xff\xff\x0f", b"\x80" * 32):
        await _write(target, prefix, wait=0.05)
        await _write(target, MULTISTREAM, prefix, bytes(1 << 16), wait=0.05)


async def a_slow_drip(target: Target) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            parts = [bytes([byte]) for byte in MULTISTREAM + NOISE]
            nursery.start_soon(lambda p: _write(target, *p, pause=0.05), parts)


async def one_byte_writes(target: Target) -> None:
    await _write(target, *(bytes([byte]) for byte in MULTISTREAM + NOISE + bytes(64)))


async def connections_that_say_nothing(target: Target) -> None:
    connections = [await target.tcp() for _ in range(200)]
    await trio.sleep(1)
    for stream in connections:
        await stream.aclose()


async def connections_that_are_reset_at_once(target: Target) -> None:
    for _ in range(200):
        stream = await target.tcp()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()


async def tls_on_the_port(target: Target) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + target.random.randbytes(508)
    for _ in range(10):
        await _write(target, hello, wait=0.02)


async def http_on_the_port(target: Target) -> None:
    for line in (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\n" + b"a: b\r\n" * 999,
    ):
        await _write(target, line, wait=0.02)


async def protocols_that_nobody_has(target: Target) -> None:
    names = [prefixed(f"/none/{n}\n".encode()) for n in range(500)]
    await _write(target, MULTISTREAM, *names)
    await _write(target, MULTISTREAM, prefixed(b"ls\n") * 100)
    await _write(target, MULTISTREAM, prefixed(b"\xff\xfe no utf-8 \n"), prefixed(b""), b"\0" * 64)


async def malformed_noise(target: Target) -> None:
    noise = target.random
    for size in (0, 1, 31, 32, 33, 48, 96, 1024, 65_535):
        first = struct.pack("!H", size) + noise.randbytes(size)
        await _write(target, MULTISTREAM, NOISE, first, wait=0.05)
        third = struct.pack("!H", 32) + noise.randbytes(32) + first
        await _write(target, MULTISTREAM, NOISE, third, wait=0.05)


async def an_identity_of_somebody_else(target: Target) -> None:
    ours, theirs = target.identity(), target.identity()
    original = PatternXX.make_handshake_payload

    def lie(self: PatternXX, *arguments: object) -> object:
        payload = original(self, *arguments)  # type: ignore[arg-type]
        payload.id_pubkey = create_new_key_pair(theirs.seed).public_key
        return payload

    PatternXX.make_handshake_payload = lie  # type: ignore[method-assign, assignment]
    try:
        for _ in range(3):
            with trio.move_on_after(1):
                async with target.peer(ours):
                    pass
    finally:
        PatternXX.make_handshake_payload = original  # type: ignore[method-assign]


KINDS: Mapping[str, Attack] = {
    "garbage on the port": garbage,
    "half a multistream header": half_a_multistream,
    "huge length prefixes": huge_length_prefixes,
    "a slow drip": a_slow_drip,
    "one-byte writes": one_byte_writes,
    "200 connections that say nothing": connections_that_say_nothing,
    "200 connections that are reset": connections_that_are_reset_at_once,
    "TLS on the port": tls_on_the_port,
    "HTTP on the port": http_on_the_port,
    "500 unknown protocols": protocols_that_nobody_has,
    "malformed noise messages": malformed_noise,
    "an identity whose key is not ours": an_identity_of_somebody_else,
}
