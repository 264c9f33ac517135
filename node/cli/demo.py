"""Demonstrate modelvine on this machine: three nodes, a language model, one streamed answer.

The demo starts a worker with a real model and three nodes on free ports, registers the model at node 1, sends a chat to node 3,
kills node 1 and starts it again. It uses only commands that you can type, and leaves nothing behind. SIGTERM and a closed
terminal end it as Ctrl-C does.

Examples:
  modelvine demo
  modelvine demo --keep
"""

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the nodes running until Ctrl-C, and print their addresses",
    )


def run(arguments: argparse.Namespace) -> int:
    """Play the demo."""
    import tempfile  # noqa: PLC0415
    from importlib.util import find_spec  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from node.demo.play import DemoOutput, ProcessGroup, play  # noqa: PLC0415
    from node.demo.worker import NOT_INSTALLED  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415
    from node.runtime import ending_signals  # noqa: PLC0415

    if find_spec("xllamacpp") is None:
        raise CommandFailed(NOT_INSTALLED)
    for number in ending_signals():
        if number != signal.SIGINT:
            signal.signal(number, _end)
    with (
        tempfile.TemporaryDirectory(prefix="modelvine-demo-") as folder,
        ProcessGroup(Path(folder)) as stage,
    ):
        play(DemoOutput(), stage, keep=arguments.keep)
    return 0


def _end(number: int, _: FrameType | None) -> NoReturn:
    # A second signal must not cut off the end of the processes.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
