"""Measurements of requests under OpenTelemetry's names, and how many series of them are kept."""

import pytest

from node.config.settings import NodeSettings
from node.observe import genai
from node.observe.measurements import (
    MAX_SERIES,
    Measurements,
    measurements_exporter_of,
    measurements_of,
)
from registry.records import PeerId, Service
from router.openai.usage import Usage
from router.select.candidates import Candidate
from tests.node.observe.accounts import account_with

COMMON = {genai.OPERATION: "chat", genai.PROVIDER: "modelvine"}
OF_MODEL = COMMON | {genai.REQUEST_MODEL: "tiny"}


def account(status=200, *, model="tiny", **fields):
    candidate = Candidate(PeerId("node"), Service("p", model)) if model else None
    defaults = {"model": "made up", "status": status, "seconds": 3.0, "candidate": candidate}
    return account_with(**defaults | fields)


def measured(measurements):
    return {
        (row.instrument, *sorted(row.attributes)): (sum(row.counts), row.total)
        for row in measurements.rows()
    }


def key(instrument, attributes):
    return (instrument, *sorted(attributes.items()))


def test_a_stream_has_its_times_and_tokens():
    measurements = Measurements()
    used = Usage(7, 11)
    streamed = account(
        streams_text=True, first_byte_seconds=0.5, used=used, served="tiny", usage=used
    )
    measurements.ended(streamed)
    assert measured(measurements) == {
        key(genai.REQUEST_DURATION, OF_MODEL): (1, 3.0),
        key(genai.FIRST_BYTE_TIME, OF_MODEL): (1, 0.5),
        key(genai.TIME_PER_OUTPUT, OF_MODEL): (1, 0.25),
        key(genai.TOKENS_USED, OF_MODEL | {genai.SORT_OF_TOKENS: "input"}): (1, 7),
        key(genai.TOKENS_USED, OF_MODEL | {genai.SORT_OF_TOKENS: "output"}): (1, 11),
    }


def test_a_failure_has_its_error_and_no_time_to_the_first_byte():
    measurements = Measurements()
    measurements.ended(account(502, error="WorkerDied", streams_text=True, first_byte_seconds=0.5))
    measurements.ended(account(499))
    assert measured(measurements) == {
        key(genai.REQUEST_DURATION, OF_MODEL | {genai.ERROR: "WorkerDied"}): (1, 3.0),
        key(genai.REQUEST_DURATION, OF_MODEL | {genai.ERROR: "499"}): (1, 3.0),
    }


def test_an_unknown_model_has_no_name_and_estimated_tokens_are_not_measured():
    measurements = Measurements()
    measurements.ended(account(404, model="", error="UnknownModel"))
    measurements.ended(account(served="tiny", usage=Usage(0, 11, estimated=True)))
    assert measured(measurements) == {
        key(genai.REQUEST_DURATION, COMMON | {genai.ERROR: "UnknownModel"}): (1, 3.0),
        key(genai.REQUEST_DURATION, OF_MODEL): (1, 3.0),
    }


def test_values_fall_between_the_bounds_of_the_conventions():
    measurements = Measurements()
    measurements.ended(account(served="tiny", usage=Usage(4, 5)))
    counts = {row.attributes[-1][1]: row.counts for row in measurements.rows()}
    assert (counts["input"].index(1), counts["output"].index(1)) == (1, 2)
    for instrument in genai.INSTRUMENTS.values():
        assert list(instrument.bounds) == sorted(set(instrument.bounds))


def test_beyond_the_most_series_models_are_counted_together():
    measurements = Measurements(limit=2)
    for model in "abcde":
        measurements.ended(account(model=model))
    measurements.ended(account(500, model="f"))
    assert measured(measurements) == {
        key(genai.REQUEST_DURATION, COMMON | {genai.REQUEST_MODEL: "a"}): (1, 3.0),
        key(genai.REQUEST_DURATION, COMMON | {genai.REQUEST_MODEL: "b"}): (1, 3.0),
        key(genai.REQUEST_DURATION, COMMON): (4, 12.0),
    }
    many = Measurements()
    for number in range(MAX_SERIES + 10):
        many.ended(account(model=f"m-{number}"))
    assert len(many.rows()) == MAX_SERIES + 1


def test_a_models_name_is_cut_and_shows_no_control_characters():
    measurements = Measurements()
    measurements.ended(account(model="a\nb" + "x" * 1_000))
    [row] = measurements.rows()
    assert row.attributes[-1] == (genai.REQUEST_MODEL, "a?b" + "x" * 253)


def test_measurements_of_helpers_are_added_once():
    first, helper = Measurements(), Measurements()
    for _ in range(2):
        helper.ended(account())
        first.ended(account())
        first.add(helper.take())
    assert helper.rows() == helper.take() == ()
    assert measured(first) == {key(genai.REQUEST_DURATION, OF_MODEL): (4, 12.0)}


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4318/spans"])
def test_without_an_address_for_metrics_nothing_is_measured(url):
    settings = NodeSettings(traces=url)
    assert measurements_of(settings) is None
    assert measurements_exporter_of(settings, PeerId("node"), None, lambda: 0.0) is None
