"""Quotas: what a request takes, what is settled when it ends, and what who is over them is told."""

import pytest

from node.auth.errors import DaySpent, RateExceeded, TooManyAtOnce
from node.auth.keys import ApiKey, hash_of
from node.auth.principal import ANYBODY, Principal
from node.auth.quotas import (
    QUIET_SECONDS,
    USUAL_TOKENS,
    Quotas,
    QuotaSpending,
    QuotaStanding,
    estimated,
)
from node.auth.rate_limit import DAY
from router.requests import Kind, Request


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
def wall():
    return Clock(100 * DAY)


@pytest.fixture
def quotas(now, wall):
    return Quotas(now, wall)


def by(name="ann", **limits):
    return Principal(ApiKey(name=name, hash=hash_of(name), **limits))


def asked(body=b'{"model":"m"}', kind=Kind.CHAT):
    return Request("r", kind, "m", body, "application/json")


def test_whoever_has_no_limits_has_no_ticket(quotas):
    assert quotas.admit(ANYBODY, asked()) is None
    assert quotas.admit(by(), asked()) is None


def test_requests_are_spread_over_the_minute_and_the_refusal_says_when(quotas, now):
    ann = by(rpm=60)
    quotas.admit(ann, asked())
    ticket = quotas.admit(ann, asked())
    assert ticket.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "2.000s",
    }
    with pytest.raises(RateExceeded, match="60 requests a minute") as over:
        quotas.admit(ann, asked())
    assert over.value.retry_after == pytest.approx(1.0)
    assert over.value.headers == ticket.headers()
    now.now = 1.0
    assert quotas.admit(ann, asked()) is not None


def test_keys_do_not_share_their_limits(quotas):
    for name in ("ann", "bob"):
        assert quotas.admit(by(name, rpm=1), asked()) is not None


def test_a_refused_request_costs_nothing(quotas, now):
    ann = by(rpm=60, concurrency=1)
    first = quotas.admit(ann, asked())
    for _ in range(50):
        with pytest.raises(TooManyAtOnce):
            quotas.admit(ann, asked())
    first.settle(None)
    assert quotas.admit(ann, asked()) is not None


def test_at_one_time_a_key_has_so_many_requests_until_they_end_once(quotas):
    ann = by(concurrency=2)
    first, _ = quotas.admit(ann, asked()), quotas.admit(ann, asked())
    with pytest.raises(TooManyAtOnce, match="2 requests under way"):
        quotas.admit(ann, asked())
    first.settle(None)
    first.settle(None)
    quotas.admit(ann, asked())
    with pytest.raises(TooManyAtOnce):
        quotas.admit(ann, asked())


def test_tokens_are_reserved_by_estimate_and_settled_by_the_answer(quotas):
    ann, body = by(tpm=1_000), asked(b"x" * 400)
    first = quotas.admit(ann, body)
    assert estimated(body) == 100 + USUAL_TOKENS
    assert first.headers()["x-ratelimit-remaining-tokens"] == str(1_000 - 356)
    quotas.admit(ann, body)
    with pytest.raises(RateExceeded, match="1,000 tokens a minute"):
        quotas.admit(ann, body)
    first.settle(20)
    last = quotas.admit(ann, body)
    assert last.headers()["x-ratelimit-remaining-tokens"] == str(1_000 - 20 - 2 * 356)


def test_where_nobody_tells_the_estimate_counts(quotas):
    ann, body = by(tpm=356), asked(b"x" * 400)
    quotas.admit(ann, body).settle(None)
    with pytest.raises(RateExceeded):
        quotas.admit(ann, body)


@pytest.mark.parametrize(
    ("body", "kind", "tokens"),
    [
        (b'{"max_tokens": 50}', Kind.CHAT, 50 + 4),
        (b'{"max_completion_tokens":7}', Kind.CHAT, 7 + 6),
        (b'{"max_tokens":"many"}', Kind.COMPLETION, USUAL_TOKENS + 5),
        (b'{"max_tokens":99}', Kind.IMAGE, 0),
    ],
)
def test_an_estimate_is_what_is_said_and_what_may_be_answered(body, kind, tokens):
    assert estimated(asked(body, kind)) == tokens


def test_a_days_tokens_end_at_midnight(quotas, wall):
    ann = by(tokens_per_day=100)
    quotas.admit(ann, asked()).settle(100)
    with pytest.raises(DaySpent, match="100 tokens a day") as over:
        quotas.admit(ann, asked())
    assert over.value.retry_after == DAY
    wall.now += DAY
    assert quotas.admit(ann, asked()) is not None


def test_what_is_spent_is_told_once_and_what_could_not_be_told_again(quotas):
    quotas.admit(by(rpm=60, tokens_per_day=1_000), asked()).settle(40)
    [told] = quotas.spent()
    assert told == QuotaSpending("ann", 1.0, 0.0, 40)
    assert [*quotas.spent()] == [QuotaSpending("ann", 0.0, 0.0, 0.0)]
    quotas.give_back(told)
    assert [*quotas.spent()] == [told]


def test_what_others_spend_counts_here(quotas):
    ann = by(rpm=60, tokens_per_day=1_000)
    quotas.admit(ann, asked()).settle(0)
    [*_] = quotas.spent()
    quotas.learn(QuotaStanding("ann", 10.0, 0.0, 0.0))
    with pytest.raises(RateExceeded) as over:
        quotas.admit(ann, asked())
    assert over.value.retry_after == pytest.approx(9.0)
    quotas.learn(QuotaStanding("ann", 0.0, 0.0, 1_000))
    with pytest.raises(DaySpent):
        quotas.admit(ann, asked())


def test_who_asks_no_more_is_forgotten(quotas, now):
    quotas.admit(by(rpm=60), asked()).settle(None)
    assert len([*quotas.spent()]) == 1
    now.now = QUIET_SECONDS + 1
    assert [*quotas.spent()] == []
    assert quotas._books == {}
