"""Counters that are added up."""

from node.observe.counters import SECONDS, Counts, HistogramCounts, LabelledCount, Spent, sum_of
from node.observe.request_sums import Histogram


def spread(kind: str, *seconds: float) -> HistogramCounts:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    return HistogramCounts(kind, tuple(histogram.counts), histogram.total)


def test_a_time_falls_between_two_bounds():
    kind, counts, total = spread("chat", 0.004, 0.005, 1000)
    assert (kind, counts[0], counts[len(SECONDS)], total) == ("chat", 2, 1, 1000.009)


def test_what_two_processes_counted_is_added_by_name():
    one = Counts(
        requests=(LabelledCount("chat", "200", 2), LabelledCount("chat", "499", 1)),
        in_flight=1,
        taken=5,
    )
    two = Counts(requests=(LabelledCount("chat", "200", 3),), in_flight=2, sent=7)
    both = sum_of((one, two))
    assert both.requests == (LabelledCount("chat", "200", 5), LabelledCount("chat", "499", 1))
    assert (both.in_flight, both.taken, both.sent) == (3, 5, 7)


def test_times_of_one_kind_are_added_bucket_by_bucket():
    one, two = spread("chat", 0.004), spread("chat", 0.004, 2)
    other = spread("embeddings", 1)
    both = sum_of((Counts(seconds=(one,)), Counts(seconds=(two, other))))
    assert both.seconds == (spread("chat", 0.004, 0.004, 2), other)


def test_tokens_are_added_by_model_part_and_whether_they_are_estimated():
    one = Counts(tokens=(Spent("m", "prompt", "no", 2), Spent("m", "completion", "yes", 1)))
    both = sum_of((one, Counts(tokens=(Spent("m", "prompt", "no", 3),))))
    assert both.tokens == (Spent("m", "prompt", "no", 5), Spent("m", "completion", "yes", 1))


def test_the_sum_of_nothing_is_nothing():
    assert sum_of(()) == Counts()
