"""Owner of the socket at the other end: asked of this machine's kernel, and decoded from answers as a kernel gives them."""

import os
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.auth.socket_owner import Endpoint, KernelTable, decode_owner

HERE, THERE = Endpoint("127.0.0.1", 50_000), Endpoint("127.0.0.1", 6100)
SOCK_DIAG, ERROR = 20, 2
ESTABLISHED, FIN_WAIT_2, TIME_WAIT, LISTEN = 1, 5, 6, 10


def answer(state=ESTABLISHED, uid=1000, inode=7, here=HERE, there=THERE, kind=SOCK_DIAG):
    """Return what a kernel answers."""
    ends = struct.pack("!HH", here.port, there.port)
    ends += b"".join(socket.inet_aton(end.address).ljust(16, b"\0") for end in (here, there))
    body = struct.pack("=BBBB", socket.AF_INET, state, 0, 0) + ends + b"\0" * 12
    body += struct.pack("=IIIII", 0, 0, 0, uid, inode)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def test_a_socket_that_a_process_holds_belongs_to_its_user():
    assert decode_owner(answer(), HERE, THERE) == 1000
    # It has closed its side, and waits for the answer.
    assert decode_owner(answer(state=FIN_WAIT_2), HERE, THERE) == 1000


@pytest.mark.parametrize(
    "said",
    [
        answer(uid=0, inode=0),
        answer(state=FIN_WAIT_2, uid=0, inode=0),
        answer(state=TIME_WAIT),
        answer(state=LISTEN),
        answer(here=Endpoint("127.0.0.1", 50_001)),
        answer(there=Endpoint("127.0.0.2", 6100)),
        answer(kind=ERROR),
        answer()[:-1],
        b"",
    ],
    ids=[
        "orphan",
        "left",
        "over",
        "listener",
        "port",
        "address",
        "error",
        "cut",
        "empty",
    ],
)
def test_any_other_answer_yields_no_owner(said):
    assert decode_owner(said, HERE, THERE) is None


def end(name):
    return Endpoint(name[0], name[1], name[3] if len(name) > 2 else 0)


@pytest.mark.parametrize(
    ("listens", "calls"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.2"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("::", "::ffff:127.0.0.1"),
        ("::", "::1"),
    ],
)
def test_the_kernel_tells_the_callers_user_while_the_caller_holds_its_socket(listens, calls):
    with ExitStack() as closing:
        family = socket.AF_INET6 if ":" in listens else socket.AF_INET
        listener = closing.enter_context(
            socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
        )
        caller = closing.enter_context(socket.create_connection((calls, listener.getsockname()[1])))
        connection = closing.enter_context(listener.accept()[0])
        here, there = end(connection.getpeername()), end(connection.getsockname())
        table = KernelTable()
        assert table.owner(here, there) == os.geteuid()
        assert table.owner(there, Endpoint(there.address, 1)) is None
        caller.shutdown(socket.SHUT_WR)
        assert table.owner(here, there) == os.geteuid()
        caller.close()
        assert table.owner(here, there) is None


def test_look_ups_share_one_socket_which_goes_with_the_table(open_files):
    table, before = KernelTable(), open_files()
    for _ in range(3):
        assert table.owner(HERE, THERE) is None
    assert open_files() == before + 1
    del table
    assert open_files() == before


@pytest.fixture
def open_files():
    """Count this process's descriptors."""
    return lambda: len([*Path("/proc/self/fd").iterdir()])
