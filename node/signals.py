"""Signals that ask the process to end. SIGTERM and Ctrl-C: the first for a drain, the second at once."""

import asyncio
import signal


class Signals:
    """The first SIGTERM or Ctrl-C asks for a drain, the second for an end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()
