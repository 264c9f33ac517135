"""A node whose libp2p thread dies when the process is sent SIGUSR1, wherever that thread happens to be.

Everything else is an ordinary `modelvine up`. `python -m tests.swarm.mortal_node up ...`
"""

import ctypes
import signal
import sys
import threading

from node.cli import main


class Struck(BaseException):
    """Exception that no handler of ours or of the library catches."""


def _strike(_: int, __: object) -> None:
    (thread,) = (t for t in threading.enumerate() if t.name == "libp2p")
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck)
    )


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _strike)
    sys.exit(main(sys.argv[1:]))
