"""Load exchange: publishes this node's load, and passes on the load reports of other nodes."""

from collections import Counter
from collections.abc import Callable, Mapping

from registry.clock import Clock
from registry.effects import Effect, Loaded
from registry.records import Load, PeerId, Service
from registry.replica import Replica

Loads = Mapping[Service, Load]


class LoadExchange:
    """Adapter between the replica, which decides what is sent and accepted, and the router, which measures and uses loads."""

    def __init__(self, replica: Replica, *, now: Clock, counters: Counter[str]) -> None:
        self._replica = replica
        self._now = now
        self._counters = counters
        self._busy: Callable[[], Loads] = dict
        self._listeners: list[Callable[[PeerId, Loads], None]] = []

    def measure(self, busy: Callable[[], Loads]) -> None:
        """Call `busy` some times a second for the load of our replicas that have requests; it must not block."""
        self._busy = busy

    def on_load(self, listener: Callable[[PeerId, Loads], None]) -> None:
        """Call `listener` with a node and the loads that it reports of some of its replicas; it must not block."""
        self._listeners.append(listener)

    def say(self) -> list[Effect]:
        """Return the effects that publish our load, if it is worth a note now."""
        effects = self._replica.report(self._busy(), self._now())
        self._counters["loads_out"] += len(effects)
        return effects

    def hear(self, heard: Loaded) -> None:
        """Pass a node's load report to the listeners."""
        self._counters["loads_in"] += 1
        if not heard.loads:
            self._counters["loads_dropped"] += 1
            return
        for listener in self._listeners:
            listener(heard.node, heard.loads)
