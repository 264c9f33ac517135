"""Usage of the last hour: buckets of half a minute, by model and node, bounded in number."""

from node.auth.usage_history import BUCKET, BUCKETS, UsageHistory
from node.auth.usage_row import UsageRow

HOUR = BUCKET * BUCKETS


class Time:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def row(model="m", node="n", **counted):
    return UsageRow("2026-11-25", "ann", model, node, **{"requests": 1, **counted})


def test_rows_within_one_bucket_are_added_up():
    history = UsageHistory(Time())
    history.add(row(completion_tokens=3, seconds=1.5, first_seconds=0.5))
    history.add(row(completion_tokens=4, failed=1, seconds=0.5))
    buckets = history.buckets("m", "n")
    assert len(buckets) == BUCKETS
    assert buckets[-1] == history.total("m", "n")
    assert (buckets[-1].requests, buckets[-1].failed, buckets[-1].completion_tokens) == (2, 1, 7)
    assert (buckets[-1].seconds, buckets[-1].first_seconds) == (2.0, 0.5)
    assert not any(bucket.requests for bucket in buckets[:-1])


def test_usage_is_gone_after_an_hour():
    time = Time()
    history = UsageHistory(time)
    history.add(row())
    time.now += HOUR - BUCKET
    assert history.pairs() == [("m", "n")]
    assert history.buckets("m", "n")[0].requests == 1
    time.now += BUCKET
    assert history.pairs() == []
    assert history.total("m", "n").requests == 0


def test_a_ring_never_holds_more_than_an_hour():
    time = Time()
    history = UsageHistory(time)
    for _ in range(3 * BUCKETS):
        history.add(row())
        time.now += BUCKET
    assert history.total("m", "n").requests == BUCKETS - 1


def test_pairs_beyond_the_most_wait_until_others_are_an_hour_old():
    time = Time()
    history = UsageHistory(time, limit=2)
    for model in "abc":
        history.add(row(model))
    assert history.pairs() == [("a", "n"), ("b", "n")]
    time.now += HOUR
    history.add(row("c"))
    assert history.pairs() == [("c", "n")]
