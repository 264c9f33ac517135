"""A node that says on SIGUSR1, in a line on standard error, what it has sent to other nodes and what of theirs was garbled.

Everything else is an ordinary `modelvine up`. `python -m tests.swarm.counting_node up ...`
"""

import signal
import sys
from typing import Any

from libp2p.io.trio import TrioTCPStream
from libp2p.security.noise.io import NoiseTransportReadWriter
from noise.exceptions import NoiseInvalidMessage

from node.cli import main

_write, _decrypt = TrioTCPStream.write, NoiseTransportReadWriter.decrypt
_counted = {"sent": 0, "garbled": 0}


async def _write_counted(self: TrioTCPStream, data: bytes) -> None:
    _counted["sent"] += len(data)
    await _write(self, data)


def _decrypt_counted(self: NoiseTransportReadWriter, data: bytes) -> bytes:
    try:
        return _decrypt(self, data)
    except NoiseInvalidMessage:
        _counted["garbled"] += 1
        raise


def _tell(*_: object) -> None:
    print("COUNTED", *_counted.values(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    library: Any = TrioTCPStream
    library.write = _write_counted
    library = NoiseTransportReadWriter
    library.decrypt = _decrypt_counted
    signal.signal(signal.SIGUSR1, _tell)
    sys.exit(main(sys.argv[1:]))
