"""Entry point of a helper: `python -m node.processes CHANNEL DOORS HTTP LINK`, four inherited descriptors. Only nodes run it."""

import sys

from node.processes.helper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
