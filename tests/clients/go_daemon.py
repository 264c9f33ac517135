"""Client of a go-libp2p daemon for the few questions of a test: its control protocol is protobuf over a unix socket."""

import io
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import base58
import multiaddr

CONNECT, OPEN_STREAM, PUBSUB = 1, 2, 8
SUBSCRIBE = 3
_OK = (1, 0)

Fields = list[tuple[int, int | bytes]]


class GoDaemon:
    """A running daemon, asked over its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def is_there(self) -> bool:
        """Return whether the daemon can be asked."""
        with socket.socket(socket.AF_UNIX) as opened:
            return opened.connect_ex(str(self._path)) == 0

    def connect(self, address: str) -> None:
        """Connect to `/ip4/…/p2p/ID`."""
        transport_address, _, peer = address.rpartition("/p2p/")
        whom = _part(1, base58.b58decode(peer)) + _part(
            2, multiaddr.Multiaddr(transport_address).to_bytes()
        )
        self._ask(_number(1, CONNECT) + _part(2, whom))

    def ping(self, peer: str, sent: bytes) -> bytes:
        """Send 32 bytes over a stream of `/ipfs/ping/1.0.0`, and return what comes back."""
        request = _part(1, base58.b58decode(peer)) + _part(2, b"/ipfs/ping/1.0.0")
        with self._asked(_number(1, OPEN_STREAM) + _part(3, request)) as (_, line):
            line.write(sent)
            line.flush()
            return line.read(len(sent))

    @contextmanager
    def heard(self, topic: str) -> Iterator[Iterator[tuple[str, bytes]]]:
        """Subscribe to a topic, and give each message heard on it: its publisher, and its bytes."""
        request = _number(1, PUBSUB) + _part(8, _number(1, SUBSCRIBE) + _part(2, topic.encode()))
        with self._asked(request) as (_, line):
            yield _messages(line)

    def _ask(self, request: bytes) -> Fields:
        with self._asked(request) as (reply, _):
            return reply

    @contextmanager
    def _asked(self, request: bytes) -> Iterator[tuple[Fields, io.BufferedRWPair]]:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.settimeout(15)
            opened.connect(str(self._path))
            line = opened.makefile("rwb")
            line.write(_varint(len(request)) + request)
            line.flush()
            reply = _fields(_message(line))
            assert reply[0] == _OK, reply
            yield reply, line


def _messages(line: io.BufferedRWPair) -> Iterator[tuple[str, bytes]]:
    while True:
        fields = _fields(_message(line))
        yield base58.b58encode(_bytes(fields, 1)).decode(), _bytes(fields, 2)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes((*encoded, number))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _part(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _read_varint(source: io.BufferedRWPair | io.BytesIO) -> int:
    number = shift = 0
    while byte := source.read(1):
        number |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return number
    raise EOFError("the daemon hung up")


def _message(line: io.BufferedRWPair) -> bytes:
    return line.read(_read_varint(line))


def _fields(message: bytes) -> Fields:
    source, fields = io.BytesIO(message), Fields()
    while source.tell() < len(message):
        tag, value = _read_varint(source), _read_varint(source)
        fields.append((tag >> 3, source.read(value) if tag & 7 == 2 else value))
    return fields


def _bytes(fields: Sequence[tuple[int, int | bytes]], field: int) -> bytes:
    value = next(value for number, value in fields if number == field)
    assert isinstance(value, bytes)
    return value
