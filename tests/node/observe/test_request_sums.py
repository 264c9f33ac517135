"""Sums of requests that have ended."""

from random import Random

import pytest

from node.observe.counters import SECONDS, LabelledCount, Spent
from node.observe.request_sums import Histogram, RequestSums
from router.openai.usage import Usage
from router.requests import Kind
from tests.node.observe.accounts import account_with


def test_a_histogram_takes_in_another_with_the_same_bounds():
    one, two = Histogram((1, 4)), Histogram((1, 4))
    for histogram, value in ((one, 1), (two, 2), (two, 5)):
        histogram.observe(value)
    one.add(two.counts, two.total)
    assert (one.counts, one.total) == ([1, 1, 1], 8)


@pytest.mark.parametrize("seed", range(20))
def test_values_fall_into_the_same_places_counted_together_or_one_by_one(seed):
    random = Random(seed)
    values = [
        random.choice([random.uniform(0, 100), *SECONDS]) for _ in range(random.randrange(50))
    ]
    together, single = Histogram(), Histogram()
    together.observe_all([*values])
    for value in values:
        single.observe(value)
    assert together.counts == single.counts
    assert together.total == pytest.approx(single.total)


def test_requests_are_counted_by_kind_and_status_and_tokens_by_model_and_source():
    reported, guessed = Usage(3, 2), Usage(0, 5, estimated=True)
    ended = [
        account_with(kind=Kind.CHAT, status=200, served="m", usage=reported, seconds=0.004),
        account_with(kind=Kind.CHAT, status=200, served="m", usage=reported, seconds=0.004),
        account_with(kind=Kind.CHAT, status=499, served="m", usage=guessed, seconds=2.0),
        account_with(
            kind=Kind.CHAT, status=502, seconds=2.0, parts=(("m", reported), ("n", guessed))
        ),
    ]
    sums = RequestSums()
    sums.add({Kind.CHAT: [0.004, 0.004]}, ended)
    sums.add({}, ended[:1])
    counts = sums.counts()
    kind = Kind.CHAT.value
    assert counts.requests == (
        LabelledCount(kind, "200", 3),
        LabelledCount(kind, "499", 1),
        LabelledCount(kind, "502", 1),
    )
    assert {*counts.tokens} == {
        Spent("m", "prompt", "no", 12),
        Spent("m", "completion", "no", 8),
        Spent("m", "completion", "yes", 5),
        Spent("n", "completion", "yes", 5),
    }
    assert [(spread.counts[0], spread.counts[8], spread.total) for spread in counts.seconds] == [
        (3, 2, 4.012)
    ]
    assert counts.first_byte[0].counts[0] == 2


def test_a_model_whose_answers_took_no_tokens_is_counted_too():
    sums = RequestSums()
    sums.add({}, [account_with(served="m", usage=Usage(0, 0))])
    assert sums.counts().tokens == (Spent("m", "completion", "no", 0),)
