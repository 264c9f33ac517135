"""Signals that end a process of ours."""

import signal


def endings() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT for Ctrl-C, and SIGHUP for a closed terminal unless it is ignored, as nohup makes it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,)))
