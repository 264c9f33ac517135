"""Run the `modelvine` command as `python -m node`."""

import sys

from node.cli import main

if __name__ == "__main__":
    sys.exit(main())
