"""Return the local node to service after `modelvine drain`.

Other nodes send requests again as soon as they learn of it, within a moment.

Examples:
  modelvine undrain
  modelvine undrain --json
"""

import argparse

from node.cli.console.options import add_json, add_node_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """End the drain, and print the result."""
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    node = client(arguments)
    node.post("/api/v1/undrain", {})
    status = node.get("/api/v1/status", holds="ready")
    if arguments.json:
        say_json({"standing": status["standing"], "models": status["models"]})
        return 0
    models = f"{status['models']} model{'' if status['models'] == 1 else 's'}"
    print(plain(f"{status['name'] or 'the node'} serves again, with {models}"))
    return 0
