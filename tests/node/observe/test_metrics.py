"""Metrics of the node, as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from node.observe.metrics import MANY, GaugeValues, Metrics
from node.observe.request_sums import MAX_MODELS
from registry.records import PeerId, Service
from router.errors import WorkerFailed
from router.openai.usage import Usage
from router.outcome import Outcome
from router.requests import Kind
from router.select.candidates import Candidate
from router.worker_metrics import Figure
from tests.node.observe.accounts import account_with

SIZES = GaugeValues(
    nodes={"alive": 3, "lost": 1},
    services=7,
    workers=2,
    worker_figures={Service("p", "m", cid="c"): {Figure.QUEUED: 4, Figure.SPEED: 12.5}},
    up={"store": True, "mesh": False},
    frames={"frames_in": 12},
    routed={"retries_refused": 3},
    connections=2,
    wires=3,
    standing=4,
    loop_lag=0.25,
    loop_busy=0.125,
    tasks={"http": 30, "mesh": 40},
    threads=3,
    relaying={"circuits": 1},
    relayed={"bytes": 1},
)
CANDIDATE = Candidate(PeerId("them"), Service("p", "m"))


def account(**fields):
    return account_with(**{"status": 200, "seconds": 0.2, **fields})


def samples(metrics):
    """Return every sample as (name, labels) → value, the way a scraper reads the text."""
    text = metrics.text(SIZES).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_request_is_counted_by_kind_and_status():
    metrics = Metrics()
    metrics.ended(account(request_bytes=10, answer_bytes=20))
    values = samples(metrics)
    assert values["modelvine_requests_total", "200", "chat/completions"] == 1
    assert values["modelvine_request_seconds_count", "chat/completions"] == 1
    assert values["modelvine_request_bytes_total",] == 10
    assert values["modelvine_answer_bytes_total",] == 20


def test_a_request_is_in_flight_until_it_ends():
    metrics, one = Metrics(), account(status=499)
    metrics.recent.under_way[one] = None
    assert samples(metrics)["modelvine_requests_in_flight",] == 1
    metrics.ended(one)
    assert samples(metrics)["modelvine_requests_in_flight",] == 0


def test_the_first_byte_is_timed_apart_from_the_last():
    metrics = Metrics()
    metrics.first_bytes[Kind.CHAT].append(0.03)
    assert samples(metrics)["modelvine_first_byte_seconds_sum", "chat/completions"] == 0.03


def test_times_are_also_shown_under_opentelemetrys_names():
    metrics = Metrics()
    streamed = account(first_byte_seconds=0.03, seconds=0.13, streams_text=True, used=Usage(5, 6))
    metrics.first_bytes[Kind.CHAT].append(0.03)
    metrics.ended(streamed)
    values = samples(metrics)
    assert values["gen_ai_server_time_per_output_token_seconds_sum", "chat", "modelvine"] == 0.02
    assert values["gen_ai_server_request_duration_seconds_count", "chat", "modelvine"] == 1
    assert values["gen_ai_server_time_to_first_token_seconds_sum", "chat", "modelvine"] == 0.03


def test_spans_are_counted_by_outcome():
    metrics = Metrics()
    metrics.spans["dropped"] += 4
    assert samples(metrics)["modelvine_spans_total", "dropped"] == 4


def test_tokens_are_counted_by_model_and_part_and_estimates_apart():
    metrics = Metrics()
    metrics.ended(account(served="m", usage=Usage(5, 6)))
    metrics.ended(account(served="m", usage=Usage(5, 6)))
    metrics.ended(account(served="m", usage=Usage(0, 3, estimated=True)))
    values = samples(metrics)
    assert values["modelvine_tokens_total", "m", "no", "prompt"] == 10
    assert values["modelvine_tokens_total", "completion", "m", "no"] == 12
    assert values["modelvine_tokens_total", "completion", "m", "yes"] == 3


def test_a_stream_that_two_workers_wrote_counts_for_both():
    metrics = Metrics()
    parts = (("m", Usage(5, 6)),)
    metrics.ended(account(parts=parts, served="n", usage=Usage(7, 8)))
    metrics.ended(account(parts=parts))
    values = samples(metrics)
    assert values["modelvine_tokens_total", "completion", "m", "no"] == 12
    assert values["modelvine_tokens_total", "completion", "n", "no"] == 8


def test_each_request_is_counted_once_however_often_the_metrics_are_read():
    metrics = Metrics()
    for number in range(3 * MANY):
        one = account(request_bytes=10)
        metrics.first_bytes[Kind.CHAT].append(0.03)
        metrics.ended(one)
        assert len(metrics.first_bytes[Kind.CHAT]) <= MANY
        if number % 100 == 0:
            counts = metrics.counts()
            assert counts.requests[0].times == sum(counts.first_byte[0].counts) == number + 1
    assert metrics.counts().taken == 30 * MANY


def test_models_beyond_the_bound_share_one_row():
    metrics = Metrics()
    for number in range(MAX_MODELS + 10):
        metrics.ended(account(served=f"m{number}", usage=Usage(0, 1)))
    values = samples(metrics)
    assert values["modelvine_tokens_total", "", "completion", "no"] == 10
    assert sum(1 for name, *_ in values if name == "modelvine_tokens_total") == MAX_MODELS + 1


def test_an_attempt_is_counted_by_dialect_and_error():
    metrics = Metrics()
    metrics.attempt(Outcome(CANDIDATE, None, 0.1))
    metrics.attempt(Outcome(CANDIDATE, WorkerFailed("no"), 0.1))
    values = samples(metrics)
    assert values["modelvine_attempts_total", "ok", "peer"] == 1
    assert values["modelvine_attempts_total", "WorkerFailed", "peer"] == 1


def test_values_that_are_counted_elsewhere_are_shown_unchanged():
    values = samples(Metrics())
    assert values["modelvine_nodes", "alive"] == 3
    assert values["modelvine_services",] == 7
    assert values["modelvine_workers",] == 2
    assert values["modelvine_worker_tells", "0", "c", "m", "p", "queued"] == 4
    assert values["modelvine_worker_tells", "0", "c", "m", "p", "tokens_per_second"] == 12.5
    assert values["modelvine_up", "store"] == 1
    assert values["modelvine_up", "mesh"] == 0
    assert values["modelvine_registry_events_total", "frames_in"] == 12
    assert values["modelvine_mesh_connections",] == 2
    assert values["modelvine_mesh_wires",] == 3
    assert values["modelvine_mesh_standing_streams",] == 4
    assert values["modelvine_loop_lag_seconds",] == 0.25
    assert values["modelvine_loop_busy_seconds",] == 0.125


def test_the_process_itself_is_measured():
    assert samples(Metrics())["process_resident_memory_bytes",] > 0


def test_two_nodes_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.recent.under_way[account()] = None
    assert samples(other)["modelvine_requests_in_flight",] == 0
