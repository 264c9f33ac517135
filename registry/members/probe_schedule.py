"""Schedule of probes over connected peers against which nothing speaks: the one that was silent longest. No I/O."""

from collections.abc import Callable, Container, Mapping

from registry.members.liveness import Pulse
from registry.records import PeerId
from registry.settings import RegistrySettings

_SPARSE = 2.5  # the greatest factor on the time between probes, reached with ten connected peers
_QUIET = 1.5  # times `probe` for which a peer must have been silent
_NEVER = float("-inf")


class Turns:
    """The peers that are connected, and when it is whose turn."""

    def __init__(self, settings: RegistrySettings, jitter: Callable[[], float]) -> None:
        self.linked: set[PeerId] = set()
        self._settings = settings
        self._jitter = jitter
        self._probed: dict[PeerId, float] = {}
        self._next = _NEVER

    def join(self, node: PeerId) -> None:
        """Take in that a peer is connected."""
        self.linked.add(node)

    def part(self, node: PeerId) -> None:
        """Take in that it is not any more."""
        self.linked.discard(node)
        self._probed.pop(node, None)

    def next(
        self, pulses: Mapping[PeerId, Pulse], *busy: Container[PeerId]
    ) -> tuple[PeerId, float] | None:
        """Return who is next, and when; nobody when all that are connected are strangers or busy."""
        quiet = {
            node: max(pulses[node].heard, self._probed.get(node, _NEVER))
            for node in self.linked
            if node in pulses and not any(node in probed for probed in busy)
        }
        if not quiet:
            return None
        node = min(quiet, key=lambda n: (quiet[n], n))
        return node, max(self._next, quiet[node] + _QUIET * self._settings.probe)

    def take(self, node: PeerId, now: float) -> None:
        """Give a peer its turn now."""
        self._probed[node] = now
        sparse = min(max(len(self.linked) / 4, 1.0), _SPARSE)
        self._next = now + self._settings.probe * sparse * (0.9 + 0.2 * self._jitter())
