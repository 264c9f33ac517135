"""Private networks: libp2p's cipher for them, imported at the first such connection, since most nodes use none."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libp2p.abc import IRawConnection
    from libp2p.security.pnet.psk_conn import PskConn


def new_protected_conn(conn: "IRawConnection", psk: str) -> "PskConn":
    """Return a connection within a private network; `psk` is the network's key of 64 hexadecimal digits."""
    from libp2p.security.pnet.psk_conn import PskConn  # noqa: PLC0415 (its cipher takes over a megabyte)

    return PskConn(conn, psk)
