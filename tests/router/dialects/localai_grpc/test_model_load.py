"""When a backend is told to load its model: a process holds one model, and its error without one may be any."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from registry.records import Service
from router.dialects import Dialect, load
from router.errors import WorkerBusy, WorkerFailed, WorkerRejected
from router.requests import Kind
from router.select.candidates import Candidate
from router.translate.verbatim import Verbatim
from tests.router.dialects.localai_grpc.asks import ASKED, left, request_of
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.localai_worker import METHODS, LocalAIWorker

UNLOADED = pytest.mark.parametrize(
    "unloaded",
    [
        ("UNKNOWN", "Exception calling application: 'BackendServicer' object has no attribute 'm'"),
        ("UNKNOWN", "Unexpected <class 'TypeError'>: 'NoneType' object is not callable"),
        ("UNKNOWN", ""),
        ("INTERNAL", "KeyError('model')"),
        ("FAILED_PRECONDITION", "LoadModel first"),
        ("NOT_FOUND", "model identity mismatch"),
        ("UNAVAILABLE", "starting"),
    ],
    ids=str,
)
STREAMS = pytest.mark.parametrize("stream", [False, True])


def loads(worker: LocalAIWorker, name: str = "m", *, more: str = "") -> Candidate:
    """Return a candidate that is registered with load options."""
    found = own(worker.url, model=name).worker
    assert found is not None
    registered = replace(
        found,
        service=Service("p", name, ""),
        load=f'{{"Model":"{name}"{more}}}',
        dialect="localai_grpc",
    )
    return Candidate("own", registered.service, registered)  # type: ignore[arg-type]


async def ask(dialect: Dialect, candidate: Candidate, *, stream: bool = False) -> bytes:
    async with dialect.answer(chat(stream=stream), candidate) as answer:
        return await whole(answer)


def models(worker: LocalAIWorker) -> list[str]:
    """Return the model that was loaded when each request came, without the requests that load."""
    requests = [request for request in worker.received if not request.path.endswith("LoadModel")]
    return [request.model for request in requests]


class TestABackendThatWasStartedAnew:
    @UNLOADED
    @STREAMS
    async def test_has_its_model_loaded_again_whatever_its_error(
        self, dialect: Dialect, worker: LocalAIWorker, unloaded: tuple[str, str], stream: bool
    ) -> None:
        worker.loaded = False
        worker.fail(unloaded=unloaded)
        candidate = loads(worker)
        assert candidate.worker is not None
        await ask(dialect, candidate, stream=stream)
        worker.restart()
        # The cut of a connection may not be noticed yet.
        while not await dialect.alive(candidate.worker):
            pass
        await ask(dialect, candidate, stream=stream)
        assert len(worker.loads) == 2

    @UNLOADED
    @STREAMS
    async def test_has_its_model_loaded_again_though_the_connection_persists(
        self, dialect: Dialect, worker: LocalAIWorker, unloaded: tuple[str, str], stream: bool
    ) -> None:
        worker.fail(unloaded=unloaded)
        for number in range(3):
            await ask(dialect, loads(worker), stream=stream)
            assert len(worker.loads) == number + 1
            worker.restart(unseen=True)

    @pytest.mark.parametrize("kind", sorted({*ASKED, Kind.TRANSCRIPTION}))
    async def test_has_its_model_loaded_again_for_every_kind(
        self, dialect: Dialect, worker: LocalAIWorker, kind: Kind
    ) -> None:
        worker.fail(unloaded_result="Unexpected err=AttributeError('pipe')")
        candidate = loads(worker)
        for _ in range(2):
            async with dialect.answer(request_of(kind), candidate) as answer:
                await whole(answer)
            worker.restart(unseen=True)
        assert len(worker.loads) == 2

    @STREAMS
    async def test_has_its_model_loaded_again_for_callers_of_its_own_protocol(
        self, dialect: Dialect, worker: LocalAIWorker, stream: bool
    ) -> None:
        call = "PredictStream" if stream else "Predict"
        body = METHODS[call].request_class(Prompt="hi").SerializeToString()
        request = replace(
            chat(kind=Kind.COMPLETION, stream=stream, body=b'{"model":"llama","prompt":"hi"}'),
            verbatim=Verbatim("localai_grpc", call, body),
        )
        for _ in range(2):
            async with dialect.answer(request, loads(worker)) as answer:
                await whole(answer)
                assert answer.verbatim == "localai_grpc"
            worker.restart(unseen=True)
        assert len(worker.loads) == 2

    async def test_applies_its_own_chat_template_as_before(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, loads(worker))
        worker.restart(unseen=True)
        for _ in range(2):
            await ask(dialect, loads(worker))
            assert worker.asked.UseTokenizerTemplate

    async def test_loads_once_for_many_concurrent_requests(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, loads(worker))
        worker.restart(unseen=True)
        worker.fail(delay_headers=0.1, lacks=frozenset({"Status"}))
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask(dialect, loads(worker)))
        assert len(worker.loads) == 2


class TestAFailureThatALoadDoesNotMend:
    async def test_causes_one_load_per_connection(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, loads(worker))
        worker.fail(
            code="UNKNOWN", refusal=b"this prompt is too strange", lacks=frozenset({"Status"})
        )
        for _ in range(3):
            with pytest.raises(WorkerFailed):
                await ask(dialect, loads(worker))
        assert len(worker.loads) == 2

    async def test_causes_no_load_where_the_backend_reports_that_it_is_ready(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, loads(worker))
        worker.fail(code="UNKNOWN")
        with pytest.raises(WorkerFailed):
            await ask(dialect, loads(worker))
        assert len(worker.loads) == 1

    @pytest.mark.parametrize(
        ("code", "error"),
        [("INVALID_ARGUMENT", WorkerRejected), ("RESOURCE_EXHAUSTED", WorkerBusy)],
    )
    async def test_causes_no_load_where_the_request_is_refused(
        self, dialect: Dialect, worker: LocalAIWorker, code: str, error: type[Exception]
    ) -> None:
        await ask(dialect, loads(worker))
        worker.fail(code=code, lacks=frozenset({"Status"}))
        with pytest.raises(error):
            await ask(dialect, loads(worker))
        assert len(worker.loads) == 1

    async def test_after_the_first_of_several_texts_causes_no_load(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        candidate = loads(worker)
        await ask(dialect, candidate)
        worker.fail(fails_from=len(worker.calls) + 1, lacks=frozenset({"Status"}))
        request = chat(body=b'{"model":"m","n":3,"messages":[{"role":"user","content":"hi"}]}')
        with pytest.raises(WorkerFailed):
            async with dialect.answer(request, candidate):
                pass
        assert len(worker.loads) == 1


class TestAnotherModelAtTheSameBackend:
    async def test_is_loaded_before_it_answers(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        for name in ("a", "b", "a", "a", "b"):
            await ask(dialect, loads(worker, name))
        assert models(worker) == ["a", "b", "a", "a", "b"]
        assert [options.Model for options in worker.loads] == ["a", "b", "a", "b"]

    async def test_with_other_options_is_loaded_anew(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        plain, edits = loads(worker), loads(worker, more=',"IMG2IMG":true')
        for candidate, kind in ((plain, Kind.IMAGE), (edits, Kind.IMAGE_EDIT), (plain, Kind.IMAGE)):
            async with dialect.answer(request_of(kind), candidate) as answer:
                await whole(answer)
        assert [options.IMG2IMG for options in worker.loads] == [False, True, False]

    @STREAMS
    async def test_waits_for_the_requests_in_flight(
        self, dialect: Dialect, worker: LocalAIWorker, stream: bool
    ) -> None:
        worker.fail(delay_first=0.05, delay_between=0.02)
        names = ["a", "a", "b", "a", "b", "b"]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ask(dialect, loads(worker, name), stream=stream))
                for name in names
            ]
        assert all(task.result() for task in tasks)
        assert worker.disturbed == 0
        assert sorted(models(worker)) == sorted(names)

    async def test_that_waits_too_long_is_refused_as_busy(self, worker: LocalAIWorker) -> None:
        worker.fail(hang=True)
        async with links(QUICK.model_copy(update={"queue_timeout": 0.1})) as own_links:
            dialect = load("localai_grpc")(own_links)
            first = asyncio.ensure_future(ask(dialect, loads(worker, "a")))
            await until(lambda: "Predict" in worker.calls)
            with pytest.raises(WorkerBusy):
                await ask(dialect, loads(worker, "b"))
            assert [options.Model for options in worker.loads] == ["a"]
            first.cancel()
            await asyncio.wait([first])

    async def test_without_options_is_refused_and_not_answered_by_the_loaded_model(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, loads(worker, "a"))
        unasked = own(worker.url, model="b")
        with pytest.raises(WorkerFailed, match="another model"):
            await ask(dialect, unasked)
        await ask(dialect, own(worker.url, model="a"))
        assert models(worker) == ["a", "a"]


class TestTheProcessesOfANode:
    """Each process has its own dialect."""

    @pytest.fixture
    async def other(self) -> AsyncIterator[Dialect]:
        async with links() as own_links:
            yield load("localai_grpc")(own_links)

    async def test_agree_on_the_model_that_is_loaded(
        self, dialect: Dialect, other: Dialect, worker: LocalAIWorker
    ) -> None:
        a, b = loads(worker, "a"), loads(worker, "b")
        for process, candidate in (
            (dialect, a),
            (other, b),
            (dialect, a),
            (other, a),
            (dialect, b),
        ):
            await ask(process, candidate)
        assert models(worker) == ["a", "b", "a", "a", "b"]
        assert [options.Model for options in worker.loads] == ["a", "b", "a", "b"]

    async def test_do_not_reload_a_model_that_another_process_is_using(
        self, dialect: Dialect, other: Dialect, worker: LocalAIWorker
    ) -> None:
        worker.fail(delay_first=0.3)
        first = asyncio.ensure_future(ask(dialect, loads(worker)))
        await until(lambda: bool(worker.writing))
        await ask(other, loads(worker))
        await first
        assert len(worker.loads) == 1

    async def test_do_not_replace_a_model_that_another_process_is_using(
        self, dialect: Dialect, other: Dialect, worker: LocalAIWorker
    ) -> None:
        worker.fail(delay_first=0.05, delay_between=0.02)
        first = asyncio.ensure_future(ask(dialect, loads(worker, "a"), stream=True))
        await until(lambda: bool(worker.writing))
        await ask(other, loads(worker, "b"), stream=True)
        await first
        assert (models(worker), worker.disturbed) == (["a", "b"], 0)

    async def test_load_again_after_a_restart(
        self, dialect: Dialect, other: Dialect, worker: LocalAIWorker
    ) -> None:
        for process in (dialect, other):
            await ask(process, loads(worker))
        worker.restart(unseen=True)
        for process in (dialect, other):
            await ask(process, loads(worker))
        assert models(worker)[-1] == "m"

    async def test_ignore_a_shared_record_that_cannot_be_parsed(
        self, dialect: Dialect, other: Dialect, worker: LocalAIWorker, shared: Path
    ) -> None:
        await ask(dialect, loads(worker, "a"))
        [(_, of_folder), (record, of_record)] = left(shared)
        assert (of_folder, of_record) == (0o700, 0o600)
        for junk in (b"", b"{", b"[]", b'{"id":5}', b'{"x":1}', b"\xff" * 100):
            await asyncio.to_thread(record.write_bytes, junk)
            await ask(other, loads(worker, "b"))
            assert models(worker)[-1] == "b"
