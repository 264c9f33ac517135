"""Preambles of the PROXY protocol: only the forms of the specification are read, and no byte behind them."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.proxy_protocol import MAX_BYTES, NoPreamble, read_client_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 5, 80)
V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(15) + b"\1" + struct.pack("!HH", 5, 80)
)


def v2(command=0x21, family=0x11, rest=V4, length=None):
    return (
        SIGNATURE
        + bytes([command, family])
        + struct.pack("!H", len(rest) if length is None else length)
        + rest
    )


class Wire:
    """Received bytes, in pieces of at most `size` bytes."""

    def __init__(self, came, size=1_000_000):
        self.left, self.size = came, size

    async def receive(self, count):
        count = min(count, self.size)
        piece, self.left = self.left[:count], self.left[count:]
        return piece


GOOD = {
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\r\n": "192.0.2.7",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 0 0\r\n": "1.1.1.1",
    b"PROXY TCP6 2001:db8::7 ::1 65535 80\r\n": "2001:db8::7",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n": "",
    v2(): "192.0.2.7",
    v2(family=0x21, rest=V6): "2001:db8::7",
    v2(rest=V4 + b"\x04\0\x02hi"): "192.0.2.7",
    v2(command=0x20, family=0, rest=b""): "",
    v2(command=0x20): "",
    v2(family=0, rest=b""): "",
    v2(rest=V4 + bytes(MAX_BYTES - 16 - len(V4))): "192.0.2.7",
}


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(("preamble", "address"), GOOD.items())
async def test_the_address_is_told_and_nothing_behind_the_preamble_is_read(preamble, address, size):
    wire = Wire(preamble + b"GET / HTTP/1.1\r\n\r\n", size)
    assert await read_client_address(wire.receive) == address
    assert wire.left == b"GET / HTTP/1.1\r\n\r\n"


BAD = [
    b"", b"P", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PROXY TCP4\r\n" + b"x" * 20,
    b"proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY TCP4 192.0.2.7 10.0.0.1 5\r\n", b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80 \r\n",
    b"PROXY TCP4 192.0.2.7  1.1.1.1 5 80\r\n", b"PROXY TCP4 192.0.2.256 10.0.0.1 5 80\r\n", b"PROXY TCP4 2001:db8::7 ::1 5 8\r\n",
    b"PROXY TCP6 1.1.1.1 1.1.1.1 5 80\r\n", b"PROXY TCP4 192.0.2.7 1.1.1.1 5 65536\r\n", b"PROXY TCP4 192.0.2.7 1.1.1.1 -5 8\r\n",
    b"PROXY TCP5 192.0.2.7 1.1.1.1 5 8\r\n", b"PROXY UDP4 192.0.2.7 1.1.1.1 5 80\r\n", b"PROXY UNKNOWN" + b" x" * 60 + b"\r\n",
    b"PROXY UNKNOWN" + b" x" * 60, b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\n" + b"x" * 200, b"PROXY UNKNOWN\0\0\r\n",
    b"PROXY UNKNOWNER\r\n", v2()[:-1], v2(rest=V4[:-1]), v2(family=0x21), v2(family=0x21, rest=V6[:-1]), v2(family=0x12),
    v2(family=0x31, rest=bytes(216)), v2(command=0x22), v2(command=0x11), v2(length=5), v2(length=40),
    v2(rest=bytes(MAX_BYTES - 15)), v2(length=65_535), SIGNATURE, SIGNATURE[:-1] + b"X" + bytes(40),
]  # fmt: skip


@pytest.mark.parametrize("came", BAD)
async def test_anything_but_a_valid_preamble_is_refused(came):
    with pytest.raises(NoPreamble):
        await read_client_address(Wire(came).receive)


@pytest.mark.parametrize("came", [b"PROXY " + b"x" * 100_000, v2(length=60_000) + bytes(100_000)])
async def test_no_more_is_read_than_a_preamble_may_have(came):
    wire = Wire(came)
    with pytest.raises(NoPreamble):
        await read_client_address(wire.receive)
    assert len(came) - len(wire.left) <= 107


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]))
async def test_any_bytes_give_an_address_or_are_refused(came, head):
    try:
        found = await read_client_address(Wire(head + came).receive)
    except NoPreamble:
        return
    assert isinstance(found, str)
