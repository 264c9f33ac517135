"""Outcome of one attempt, and what it shows about the candidate's node."""

from registry.members.liveness import Evidence
from registry.values import value_class
from router.errors import WorkerAway, WorkerError, WorkerStale, WorkerTimeout, WorkerUnreachable
from router.select.candidates import Candidate

_STALE = WorkerStale, WorkerAway


@value_class
class Outcome:
    """How one attempt went; `error` is `None` if it was answered. `seconds` last from its start to its very end."""

    candidate: Candidate
    error: WorkerError | None
    seconds: float
    left: bool = False
    """Whether its caller left in the middle of the answer: maybe because nothing came any more."""
    request: str = ""
    """The request's id."""
    circuit: str = ""
    """State of the candidate's circuit after a failure; empty if it answered."""

    @property
    def evidence(self) -> Evidence | None:
        """Evidence about the node: the path to it works, or does not. A failing worker shows nothing."""
        if self.error is None:
            return None if self.left else Evidence.ANSWERED
        match self.error:
            case WorkerUnreachable() | WorkerTimeout(phase="connection"):
                return Evidence.FAILED
            case _:
                return None

    @property
    def is_stale(self) -> bool:
        """Whether another node reported that it no longer serves the model: our catalog is behind."""
        return self.candidate.worker is None and isinstance(self.error, _STALE)
