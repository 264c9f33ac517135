"""See it all work on this machine: three nodes, a language model, one streamed answer across the mesh.

Starts a worker with a real model and three nodes on free ports, registers the model at node 1, asks for it at node 3,
takes node 1's power away and gives it back. Everything is done with commands that you could type; nothing is left behind.

Examples:
  modelvine demo
  modelvine demo --keep
"""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the nodes up until Ctrl-C, and print where they are",
    )


def run(arguments: argparse.Namespace) -> int:
    """Play the demo."""
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from node.demo.play import Show, Stage, play  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="modelvine-demo-") as folder,
        Stage(Path(folder)) as stage,
    ):
        play(Show(), stage, keep=arguments.keep)
    return 0
