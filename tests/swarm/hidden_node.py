"""A node that tells others an address at which nothing answers, like one behind a router that lets no connection in.

Everything else is an ordinary `modelvine up`. `python -m tests.swarm.hidden_node up ...`
"""

import sys
from dataclasses import replace
from typing import Any

import node.run
from node.cli import main
from node.peers.reach import reach_of
from registry.records import Reach

# Nothing listens on port 9 of loopback, so each connection is refused at once.
_NOBODY = "127.0.0.1:9"


def _elsewhere(*arguments: Any, **options: Any) -> Reach:
    return replace(reach_of(*arguments, **options), links=(_NOBODY,))


if __name__ == "__main__":
    node.run.reach_of = _elsewhere
    sys.exit(main(sys.argv[1:]))
