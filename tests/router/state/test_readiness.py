"""Laws of whether waiting for a worker of a model is worthwhile, and what is shown of its last answers."""

import pytest

from router.errors import (
    NobodyServes,
    NoCapacity,
    RouterError,
    UnknownModel,
    WorkerAway,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerLoading,
    WorkerStale,
    WorkerTimeout,
    WorkerUnreachable,
)
from router.state.readiness import (
    FORGOTTEN,
    HOPE,
    LONGEST_RESTART,
    MAX_ADDRESSES,
    MAX_MODELS,
    RESTART,
    AddressHealth,
    HealthTable,
    Readiness,
    is_not_ready,
    loading_error,
    unreached_error,
)

AWAY = WorkerUnreachable("refused")


@pytest.mark.parametrize(
    ("error", "holds"),
    [
        (NobodyServes("lost"), True),
        (WorkerUnreachable("refused"), True),
        (WorkerUnreachable("fell silent", sent=True), False),
        (WorkerTimeout("connection", 1), True),
        (WorkerTimeout("first byte", 1), False),
        (WorkerLoading(), True),
        (WorkerAway("drains"), True),
        (WorkerStale("gone"), False),
        (WorkerFailed("broken"), False),
        (WorkerBusy("full"), False),
        (NoCapacity("full"), False),
        (UnknownModel("m"), False),
    ],
)
def test_only_absent_or_loading_workers_are_worth_waiting_for(
    error: RouterError, holds: bool
) -> None:
    assert is_not_ready(error) is holds


@pytest.mark.parametrize(
    ("body", "eta"),
    [
        (b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', None),
        (b'{"error":{"code":"model_loading"},"loading":{"state":"loading","eta_seconds":7}}', 7.0),
        (
            b'{"error":{"code":"model_loading"},"loading":{"state":"loading","eta_seconds":-7}}',
            None,
        ),
        (b'{"error":"Model x is currently loading","estimated_time":20.5}', 20.5),
        (b'{"estimated_time":1e300,"x":"loading"}', 3600.0),
        (b"loading", None),
    ],
)
def test_loading_is_recognised_in_the_forms_of_several_servers(
    body: bytes, eta: float | None
) -> None:
    loading = loading_error(body)
    assert loading is not None
    assert loading.eta == eta


@pytest.mark.parametrize("body", [b"", b"no", b'{"error":"server busy"}', b"\xff\xfe"])
def test_a_body_that_does_not_mention_loading_is_not_loading(body: bytes) -> None:
    assert loading_error(body) is None


ENVOY = b"upstream connect error or disconnect/reset before headers. reset reason: "


@pytest.mark.parametrize(
    ("body", "unreached"),
    [
        (b"No server is available to handle this request.", True),
        (b"no healthy upstream", True),
        (ENVOY + b"remote connection failure", True),
        (ENVOY + b"connection failure", True),
        (ENVOY + b"connection termination", False),
        (b"no available server", True),
        (b"<html><head><title>503 Service Temporarily Unavailable</title></head>", True),
        (b'{"error":"unavailable"}', False),
        (b"", False),
    ],
)
def test_a_proxy_says_whether_it_passed_the_request_to_its_worker(
    body: bytes, unreached: bool
) -> None:
    error = unreached_error(body)
    assert (error is not None) is unreached
    assert error is None or not error.sent


def test_a_model_that_was_away_for_long_is_not_waited_for_until_it_answers_again() -> None:
    readiness = Readiness()
    assert readiness.is_worth_waiting("m", 0.0)
    for now in (0.0, HOPE / 2, HOPE):
        readiness.record_not_ready("m", AWAY, now)
    assert not readiness.is_worth_waiting("m", HOPE)
    assert readiness.is_worth_waiting("another", HOPE)
    readiness.record_ready("m", HOPE + 1)
    readiness.record_not_ready("m", AWAY, HOPE + 2)
    assert readiness.is_worth_waiting("m", HOPE + 2)


def test_a_model_that_reports_loading_is_waited_for_however_long_it_takes() -> None:
    readiness = Readiness()
    for now in range(0, 1000, 10):
        readiness.record_not_ready("m", WorkerLoading(), float(now))
    assert readiness.is_worth_waiting("m", 1000.0)


def test_a_model_that_was_not_requested_for_a_long_time_is_waited_for_again() -> None:
    readiness = Readiness()
    readiness.record_not_ready("m", AWAY, 0.0)
    readiness.record_not_ready("m", AWAY, FORGOTTEN)
    assert readiness.is_worth_waiting("m", FORGOTTEN)


def test_loading_is_expected_to_take_as_long_as_the_last_time() -> None:
    readiness = Readiness()
    readiness.record_not_ready("m", WorkerLoading(), 0.0)
    assert readiness.eta("m", 0.0) is None
    readiness.record_ready("m", 40.0)
    readiness.record_not_ready("m", WorkerLoading(), 100.0)
    assert readiness.eta("m", 110.0) == 30.0
    assert readiness.eta("m", 150.0) is None


def test_the_number_of_remembered_models_is_bounded() -> None:
    readiness = Readiness()
    for n in range(2 * MAX_MODELS):
        readiness.record_not_ready(str(n), WorkerLoading(), 0.0)
        if n % 2:
            readiness.record_ready(str(n), 1.0)
    assert len(readiness._spells) <= MAX_MODELS
    assert len(readiness._loading_times) <= MAX_MODELS


REFUSED = WorkerUnreachable("refused")


def test_an_unknown_worker_may_return() -> None:
    assert HealthTable().may_return("a", 0.0)
    assert HealthTable().health_of("a", 0.0) == AddressHealth()


def test_a_worker_that_never_answered_a_probe_is_not_waited_for_until_it_does() -> None:
    table = HealthTable()
    table.record_probe("a", 0.0, answers=False)
    assert not table.may_return("a", 0.0)
    assert table.health_of("a", 5.0) == AddressHealth(known=True, silent=5.0)
    table.record_answer("a", 6.0)
    table.record_error("a", REFUSED, 7.0)
    assert table.may_return("a", 7.0)


def test_a_probed_worker_is_away_since_its_last_answer() -> None:
    table = HealthTable()
    table.record_probe("a", 0.0, answers=True)
    table.record_probe("a", 15.0, answers=False)
    assert table.may_return("a", RESTART - 1)
    assert not table.may_return("a", RESTART)
    assert table.health_of("a", RESTART) == AddressHealth(known=True, ever=True, silent=RESTART)


def test_a_worker_that_is_not_probed_is_away_since_its_first_miss() -> None:
    table = HealthTable()
    table.record_answer("a", 0.0)
    table.record_error("a", REFUSED, 1000.0)
    table.record_error("a", REFUSED, 1000.0 + RESTART - 1)
    assert table.may_return("a", 1000.0 + RESTART - 1)
    assert not table.may_return("a", 1000.0 + RESTART)
    # The last sign is too old to say anything about now.
    assert table.may_return("a", 1000.0 + RESTART + FORGOTTEN)


def test_a_worker_with_long_restarts_is_waited_for_longer_within_bounds() -> None:
    table = HealthTable()
    table.record_probe("a", 0.0, answers=True)
    for took in (50.0, 500.0):
        table.record_error("a", REFUSED, 1.0)
        table.record_probe("a", took, answers=True)
        table.record_probe("a", took + 1, answers=False)
        patience = min(2 * took, LONGEST_RESTART)
        assert table.may_return("a", took + patience - 1)
        assert not table.may_return("a", took + patience)
        table = HealthTable()
        table.record_probe("a", 0.0, answers=True)


def test_the_word_of_its_node_counts_for_another_nodes_worker() -> None:
    table = HealthTable()
    table.record_error("a", WorkerAway("restarts", hopeful=True), 0.0)
    assert table.may_return("a", 0.0)
    table.record_error("a", WorkerAway("never there"), 1.0)
    assert not table.may_return("a", 1.0)
    table.record_answer("a", 2.0)
    table.record_error("a", WorkerAway("long gone"), 3.0)
    assert not table.may_return("a", 3.0)


def test_only_an_absent_worker_is_silent_and_any_answer_is_a_sign_of_life() -> None:
    away = (REFUSED, WorkerTimeout("connection", 1))
    alive = (WorkerFailed("500"), WorkerBusy("full"))
    neither: tuple[WorkerError, ...] = (WorkerDied("hung up"), WorkerTimeout("first byte", 1))
    for errors, known, answers in (
        (away, True, False),
        (alive, True, True),
        (neither, False, False),
    ):
        for error in errors:
            table = HealthTable()
            table.record_error("a", error, 0.0)
            health = table.health_of("a", 0.0)
            assert (health.known, health.answers) == (known, answers)


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    table = HealthTable()
    for number in range(MAX_ADDRESSES + 1):
        table.record_answer(str(number), 0.0)
    assert not table.health_of("0", 0.0).known
    assert table.health_of("1", 0.0).known
