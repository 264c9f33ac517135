"""Laws of all requests to a LocalAI backend except those for texts."""

import asyncio
from pathlib import Path

import orjson
import pytest

from router.dialects import Dialect, load
from router.dialects.localai_grpc import SERVED
from router.dialects.localai_grpc.backend import METHODS
from router.errors import (
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.openai.usage import TEXT
from router.requests import MODEL_KINDS, Kind
from router.worker_metrics import Figure, LoadReporting
from router.workers import Worker
from tests.router.dialects.localai_grpc.asks import ASKED, EVERY, MADE, ask, left
from tests.router.world import QUICK, links, own, until
from tests.workers.localai_worker import LocalAIWorker


def test_all_kinds_but_texts_and_inner_states_are_served_here() -> None:
    assert set(SERVED) == set(MODEL_KINDS) - TEXT - {Kind.GUTS}


class TestAFailure:
    @pytest.mark.parametrize("kind", sorted(ASKED))
    @pytest.mark.parametrize(
        ("faults", "error"),
        [
            ({"status": 500}, WorkerFailed),
            ({"status": 503}, WorkerUnreachable),
            ({"status": 429}, WorkerBusy),
            ({"code": "INVALID_ARGUMENT"}, WorkerRejected),
            ({"die_before_headers": True}, WorkerDied),
        ],
        ids=str,
    )
    async def test_has_its_own_error_class_and_leaves_no_file(
        self, dialect: Dialect, worker: LocalAIWorker, shared: Path,
        kind: Kind, faults: dict[str, object], error: type[WorkerError],
    ) -> None:  # fmt: skip
        worker.fail(**faults)
        with pytest.raises(error):
            await ask(dialect, worker, kind)
        assert left(shared) == []

    @MADE
    async def test_to_answer_in_time_is_a_timeout_and_leaves_no_file(
        self, worker: LocalAIWorker, shared: Path, kind: Kind
    ) -> None:
        worker.fail(hang=True)
        async with links(QUICK.model_copy(update={"first_byte_timeout": 0.3})) as own_links:
            with pytest.raises(WorkerTimeout):
                await ask(load("localai_grpc")(own_links), worker, kind)
        assert left(shared) == []

    @EVERY
    async def test_to_serve_a_kind_does_not_count_against_the_backend(
        self, dialect: Dialect, worker: LocalAIWorker, kind: Kind
    ) -> None:
        worker.fail(lacks=frozenset(METHODS))
        with pytest.raises(WorkerUnable, match="does not serve") as unable:
            await ask(dialect, worker, kind)
        assert (unable.value.param, unable.value.blames_worker) == ("model", False)

    @pytest.mark.parametrize(
        "kind", [Kind.IMAGE, Kind.SPEECH, Kind.SOUND, Kind.STORE_SET, Kind.STORE_DELETE]
    )
    async def test_reported_in_a_result_message_is_a_failure_too(
        self, dialect: Dialect, worker: LocalAIWorker, kind: Kind
    ) -> None:
        worker.fail(empty=True)
        with pytest.raises(WorkerFailed) as failed:
            await ask(dialect, worker, kind)
        assert "failed: Unexpected err=RuntimeError('no')" in str(failed.value)

    @MADE
    async def test_of_a_caller_that_is_cancelled_leaves_no_file(
        self, dialect: Dialect, worker: LocalAIWorker, shared: Path, kind: Kind
    ) -> None:
        worker.fail(hang=True)
        async with asyncio.TaskGroup() as tasks:
            await self._leave(tasks, dialect, worker, shared, kind)
        assert left(shared) == []
        await until(lambda: worker.hung_up == 1)

    async def _leave(
        self,
        tasks: asyncio.TaskGroup,
        dialect: Dialect,
        worker: LocalAIWorker,
        shared: Path,
        kind: Kind,
    ) -> None:
        job = tasks.create_task(ask(dialect, worker, kind))
        await until(lambda: bool(worker.received))
        assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in left(shared))
        assert left(shared)
        job.cancel()


@EVERY
async def test_a_wrong_value_is_refused_before_the_backend_is_asked(
    dialect: Dialect, worker: LocalAIWorker, kind: Kind
) -> None:
    name = next(iter(ASKED[kind]))
    with pytest.raises(WorkerRejected) as refused:
        await ask(dialect, worker, kind, **{name: {"no": 1}})
    error = orjson.loads(refused.value.body)["error"]
    assert (error["param"], error["code"]) == (name, "invalid_parameter")
    assert worker.received == []


class TestFigures:
    async def test_are_those_of_the_last_answer(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        assert isinstance(dialect, LoadReporting)
        assert await dialect.figures(registered(worker)) == {
            Figure.SPEED: 12.5,
            Figure.READ: 0,
            Figure.WRITTEN: 7,
        }

    async def test_of_a_backend_without_metrics_are_none(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        worker.fail(lacks=frozenset({"GetMetrics"}))
        assert isinstance(dialect, LoadReporting)
        assert await dialect.figures(registered(worker)) is None

    async def test_of_a_backend_that_is_busy_or_away_are_empty(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        assert isinstance(dialect, LoadReporting)
        worker.fail(hang=True)
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(ask(dialect, worker, Kind.EMBEDDING))
            await until(lambda: bool(worker.received))
            assert await dialect.figures(registered(worker)) == {}
            job.cancel()
        away = own("grpc://127.0.0.1:1").worker
        assert away is not None
        assert await dialect.figures(away) == {}


def registered(backend: LocalAIWorker) -> Worker:
    found = own(backend.url).worker
    assert found is not None
    return found
