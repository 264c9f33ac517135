"""Starts a helper: `python -m node.processes CHANNEL DOORS HTTP LINK`, four inherited descriptors. Only a node does so."""

import sys

from node.processes.helper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
