"""Answer times of replicas, measured for local workers and reported by other nodes, and the prefixes they have read."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from registry.bounded import put_newest
from registry.records import PeerId, Service
from router.answer import Answer
from router.openai.usage import TEXT
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.select.fitness import USUAL_BYTES
from router.state.estimator import PAUSE, Estimator, ObservedTime
from router.state.prefix_index import PrefixIndex, Read, ReplicaAnswer
from router.state.remote_load import NewestOfNodes, Reported
from router.state.service_time import NOTHING_BEFORE, ReadPrefix, ServiceTime
from router.workers import Worker

if TYPE_CHECKING:
    from router.attempt import Attempt

MAX_OWN = 4_096
"""Pairs of local worker and kind of request that are remembered; beyond that, the oldest is evicted."""

MAX_OBSERVED = 4_096
"""The same for replicas of other nodes. They are not forgotten with their node, or a restart would hide what was observed."""


class AnswerTimes:
    """Service times and read prefixes of replicas, learnt from answers. Time is an argument."""

    def __init__(self) -> None:
        self.own_estimators: dict[tuple[Service, Kind], Estimator] = {}
        self.reported_times = NewestOfNodes[tuple[Service, Kind], ServiceTime]()
        self.observed: dict[tuple[PeerId, Service, Kind], ObservedTime] = {}
        self.prefix_index = PrefixIndex()

    def estimator(self, worker: Worker, kind: Kind) -> Estimator:
        """Return the estimator of a local worker's service time."""
        estimator = self.own_estimators.get((worker.service, kind))
        if estimator is None:
            estimator = Estimator(shares=not worker.capacity)
            put_newest(self.own_estimators, (worker.service, kind), estimator, limit=MAX_OWN)
        return estimator

    def own_service_time(self, service: Service, kind: Kind) -> ServiceTime | None:
        """Return the service time of a worker of this machine, `None` until it has answered."""
        estimator = self.own_estimators.get((service, kind))
        return estimator.time if estimator else None

    def replicas_that_read(self, request: Request, now: float) -> Iterable[tuple[PeerId, Service]]:
        """Return the replicas known to have read part of a request's conversation."""
        return self.find_readers(request, now)[0]

    def find_readers(
        self, request: Request, now: float
    ) -> tuple[Mapping[tuple[PeerId, Service], Read], int]:
        """Return how much of a request each replica has read before, and how many bytes of it all replicas probably have."""
        return self.prefix_index.find_readers(request.prefixes, now, of_batch=request.background)

    def record_first_byte(self, attempt: "Attempt", worker: Worker, now: float) -> None:
        """Take in how long a local worker took for the first byte of a stream."""
        kind = attempt.request.kind
        estimator = self.own_estimators.get((worker.service, kind)) or self.estimator(worker, kind)
        if now - estimator.first_byte_evaluated_at < PAUSE:
            return
        estimator.first_byte_evaluated_at = now
        estimator.record_first_byte(
            now - attempt.began,
            kilobytes=len(attempt.request.body) / 1_000,
            concurrency=attempt.occupancy.count,
            before=attempt.candidate.before,
        )

    def record_answer(self, attempt: "Attempt", worker: Worker, answer: Answer, now: float) -> None:
        """Take in how long a local worker took for a whole answer."""
        kind = attempt.request.kind
        estimator = self.own_estimators.get((worker.service, kind)) or self.estimator(worker, kind)
        if now - estimator.evaluated_at < PAUSE or answer.broken or answer.status // 100 != 2:
            return
        estimator.evaluated_at, usage, tokens = now, answer.usage, _tokens(kind, answer)
        if tokens is None:
            return
        seconds = now - attempt.began
        occupied_seconds = attempt.occupancy.seconds_until(now) - attempt.occupied_before
        kilobytes, cached = len(attempt.request.body) / 1_000, None
        if usage and usage.prompt and usage.cached is not None:
            cached = kilobytes * usage.cached / usage.prompt
        estimator.record_answer(
            seconds,
            kilobytes=kilobytes,
            tokens=tokens,
            concurrency=max(1.0, occupied_seconds / seconds) if seconds > 0 else 1.0,
            before=attempt.candidate.before,
            cached=cached,
        )

    def record_peer_answer(
        self, attempt: "Attempt", answer: Answer, report: Reported | None, now: float
    ) -> None:
        """Take in how long another node took for a whole answer, and compare it with what that node reports."""
        request, (node, service) = attempt.request, attempt.candidate.key
        key = node, service, request.kind
        observed = self.observed.get(key)
        if observed is None:
            observed = ObservedTime()
            put_newest(self.observed, key, observed, limit=MAX_OBSERVED)
        if now - observed.evaluated_at < PAUSE or answer.broken or answer.status // 100 != 2:
            return
        observed.evaluated_at, tokens = now, _tokens(request.kind, answer)
        if tokens is None:
            return
        time = self.reported_times.newest(node, (service, request.kind))
        if time is not None and answer.usage is not None and answer.usage.estimated:
            # Its node did not report them with this answer, but how many they are on average.
            tokens = time.tokens
        observed.record_answer(
            now - attempt.began,
            kilobytes=len(request.body) / 1_000,
            tokens=tokens,
            ours=attempt.occupancy.count,
            time=time,
            report=report,
            before=attempt.candidate.before,
        )

    def record_replica_answer(
        self, request: Request, candidate: Candidate, answer: ReplicaAnswer, now: float
    ) -> None:
        """Take in what a candidate's node reports: its service time, and how much of a conversation it has read."""
        if answer.read is not None:
            self.prefix_index.record_reported(candidate.key, request.prefixes, answer.read, now)
        if answer.time is not None:
            self.reported_times.record(
                candidate.node, (candidate.service, request.kind), answer.time
            )


def _tokens(kind: Kind, answer: Answer) -> float | None:
    """Return the tokens of an answer, `None` if unknown: those of a stream that was left half-way."""
    if kind not in TEXT:
        return 0.0
    if answer.usage is not None:
        return answer.usage.completion
    return None if answer.streamed or answer.length is None else answer.length / USUAL_BYTES


class ReadBefore:
    """How much of one request each replica has read before, as of one moment."""

    __slots__ = ("_read", "_shared")

    def __init__(self, times: AnswerTimes, request: Request, now: float) -> None:
        self._read, shared = times.find_readers(request, now)
        self._shared = ReadPrefix(shared=shared / 1_000) if shared else NOTHING_BEFORE

    def cached_prefix(self, key: tuple[PeerId, Service]) -> ReadPrefix:
        """Return what a replica has read of it."""
        read = self._read.get(key) if self._read else None
        if read is None:
            return self._shared
        return ReadPrefix(read.size / 1_000, read.age, self._shared.shared)
