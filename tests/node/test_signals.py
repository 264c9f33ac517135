"""Signals that end this process: the first starts a drain, the second ends it at once."""

import asyncio
import os
import signal

import pytest

from node.runtime import Signals
from node.signals import endings


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_and_the_second_are_told_apart(number: signal.Signals) -> None:
    signals = Signals()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(signals.first.wait(), 5)
    assert not signals.second.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(signals.second.wait(), 5)


def test_a_closed_terminal_ends_nothing_that_nohup_started() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert endings() == (signal.SIGTERM, signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in endings()
