"""Command that prints the loss of the base model, and with an adapter.

Usage: `python -m tests.workers.fine_tuning.adapted ROWS ADAPTER`.
"""

import sys
from pathlib import Path

from tests.workers.fine_tuning.data import dialogs_of
from tests.workers.fine_tuning.training import loss_of

if __name__ == "__main__":
    rows, adapter = map(Path, sys.argv[1:])
    dialogs = dialogs_of(rows.read_bytes())
    sys.stdout.write(f"{loss_of(dialogs)} {loss_of(dialogs, adapter)}\n")
