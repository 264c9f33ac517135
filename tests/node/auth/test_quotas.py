"""Quotas: what a request takes, what is settled when it ends, and what a caller over its limits is told."""

import pytest

from node.auth.errors import DaySpent, RateExceeded, TooManyAtOnce
from node.auth.keys import ApiKey, KeyLimits, ModelLimit, QuotaSpending, QuotaStanding, hash_of
from node.auth.principal import ANYBODY, Principal
from node.auth.quotas import (
    MAX_ADDRESSES,
    QUIET_SECONDS,
    USUAL_TOKENS,
    Quotas,
    estimated,
)
from node.auth.rate_limit import DAY
from router.requests import Kind, Pin, Request


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


def asked(body=b'{"model":"m"}', kind=Kind.CHAT, model="m", **fields):
    return Request("r", kind, model, body, "application/json", **fields)


def test_a_caller_without_limits_has_no_ticket(quotas):
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
    with pytest.raises(RateExceeded, match="60 requests a minute") as refused:
        quotas.admit(ann, asked())
    assert refused.value.retry_after == pytest.approx(1.0)
    assert refused.value.headers == ticket.headers()
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


def test_the_concurrent_requests_of_a_key_are_bounded_and_each_ends_once(quotas):
    ann = by(concurrency=2)
    first, _ = quotas.admit(ann, asked()), quotas.admit(ann, asked())
    with pytest.raises(TooManyAtOnce, match="2 concurrent requests"):
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


def test_the_estimate_counts_where_an_answer_does_not_tell_its_tokens(quotas):
    ann, body = by(tpm=356), asked(b"x" * 400)
    quotas.admit(ann, body).settle(None)
    with pytest.raises(RateExceeded):
        quotas.admit(ann, body)


HUGE = b'{"max_tokens":9999999}'


def test_no_answer_without_usage_costs_more_than_a_whole_limit(quotas, now, wall):
    ann = by(tpm=1_000, tokens_per_day=5_000)
    quotas.admit(ann, asked(HUGE)).settle(None)
    books = quotas._books["ann"]
    assert (books.tokens.due, books.day.used) == (pytest.approx(60.0), 5_000)
    wall.now += DAY
    now.now = 60.0
    quotas.admit(ann, asked(HUGE)).settle(20)
    assert (books.tokens.due, books.day.used) == (pytest.approx(61.2), 20)


@pytest.mark.parametrize(("limit", "cost"), [(5_000, 100), (50, 50)])
def test_a_request_that_is_abandoned_before_its_answer_costs_its_prompt(quotas, limit, cost):
    ticket = quotas.admit(by(tokens_per_day=limit), asked(b"x" * 400))
    ticket.abandon()
    books = quotas._books["ann"]
    assert (books.day.used, books.under_way) == (cost, 0)


def test_an_answer_without_usage_costs_at_least_the_tokens_that_were_seen(quotas):
    ann = by(tpm=1_000, tokens_per_day=5_000)
    quotas.admit(ann, asked(HUGE)).settle(None, written=7_000)
    books = quotas._books["ann"]
    assert (books.tokens.due, books.day.used) == (pytest.approx(420.0), 7_000)


@pytest.mark.parametrize(
    ("body", "kind", "tokens"),
    [
        (b'{"max_tokens": 50}', Kind.CHAT, 50 + 4),
        (b'{"max_completion_tokens":7}', Kind.CHAT, 7 + 6),
        (b'{"max_tokens":"many"}', Kind.COMPLETION, USUAL_TOKENS + 5),
        (b'{"max_tokens":99}', Kind.IMAGE, 0),
    ],
)
def test_an_estimate_is_the_size_of_the_request_plus_the_longest_answer(body, kind, tokens):
    assert estimated(asked(body, kind)) == tokens


def test_the_tokens_of_a_day_are_renewed_at_midnight(quotas, wall):
    ann = by(tokens_per_day=100)
    quotas.admit(ann, asked()).settle(100)
    with pytest.raises(DaySpent, match="100 tokens a day") as refused:
        quotas.admit(ann, asked())
    assert refused.value.retry_after == DAY
    wall.now += DAY
    assert quotas.admit(ann, asked()) is not None


@pytest.mark.parametrize("told", [20, None])
def test_a_request_across_midnight_costs_the_next_day_its_own_tokens(quotas, wall, told):
    body = asked(b'{"max_tokens":500}')
    ticket = quotas.admit(by(tokens_per_day=1_000), body)
    [*_] = quotas.spent()
    wall.now += DAY
    ticket.settle(told)
    [spending] = quotas.spent()
    assert (spending.day, spending.date) == (told or estimated(body), 101)
    assert quotas._books["ann"].day.used == spending.day


def test_spending_is_told_once_and_again_if_it_could_not_be_told(quotas):
    quotas.admit(by(rpm=60, tokens_per_day=1_000), asked()).settle(40)
    [spending] = quotas.spent()
    assert spending == QuotaSpending("ann", 1.0, 0.0, 40, date=100)
    assert [*quotas.spent()] == [QuotaSpending("ann", 0.0, 0.0, 0.0, date=100)]
    quotas.give_back(spending)
    assert [*quotas.spent()] == [spending]


def test_spending_at_other_nodes_counts_here(quotas):
    ann = by(rpm=60, tokens_per_day=1_000)
    quotas.admit(ann, asked()).settle(0)
    [*_] = quotas.spent()
    quotas.learn(QuotaStanding("ann", 10.0, 0.0, 0.0, date=100))
    with pytest.raises(RateExceeded) as refused:
        quotas.admit(ann, asked())
    assert refused.value.retry_after == pytest.approx(9.0)
    quotas.learn(QuotaStanding("ann", 0.0, 0.0, 1_000, date=100))
    with pytest.raises(DaySpent):
        quotas.admit(ann, asked())


def test_a_key_that_asks_no_more_is_forgotten(quotas, now):
    quotas.admit(by(rpm=60), asked()).settle(None)
    assert len([*quotas.spent()]) == 1
    now.now = QUIET_SECONDS + 1
    assert [*quotas.spent()] == []
    assert quotas._books == {}


@pytest.mark.parametrize("limits", [{"tpm": 1_000}, {"rpm": 1}], ids=["tokens", "requests"])
def test_a_key_that_is_far_ahead_of_its_limit_is_not_forgotten_while_quiet(quotas, now, limits):
    ann = by(**limits)
    quotas.admit(ann, asked()).settle(0)
    [*_] = quotas.spent()
    quotas.learn(QuotaStanding("ann", 6_000.0, 6_000.0, 0.0, date=100))
    now.now += QUIET_SECONDS + 1
    assert [*quotas.spent()] == []
    with pytest.raises(RateExceeded):
        quotas.admit(ann, asked())
    now.now += 6_000.0
    assert [*quotas.spent()] == []
    assert quotas._books == {}


def test_a_model_has_limits_of_its_own_within_those_of_its_key(quotas):
    ann = by(rpm=90, model_limits=(ModelLimit(model="big*", rpm=24),))
    ticket = quotas.admit(ann, asked(model="big-1"))
    with pytest.raises(RateExceeded, match=r"for big\* this key allows 24 requests") as refused:
        quotas.admit(ann, asked(model="big-2"))
    assert refused.value.headers["x-ratelimit-limit-requests"] == "24"
    # The refused request cost the key nothing: three may come at once.
    for _ in range(2):
        quotas.admit(ann, asked(model="small"))
    with pytest.raises(RateExceeded, match="this key allows 90 requests"):
        quotas.admit(ann, asked(model="small"))
    assert ticket.headers()["x-ratelimit-limit-requests"] == "24"


def test_a_request_with_a_passed_on_grant_counts_for_the_original_grant_too(quotas):
    original = ApiKey(name="g", hash=hash_of("g"), rpm=60)
    passed_on = [
        Principal(ApiKey(name=f"g.{n}", hash=hash_of(f"g.{n}"), rpm=600, within=original))
        for n in range(3)
    ]
    tickets = [quotas.admit(one, asked()) for one in passed_on[:2]]
    # Each may ask ten times as much, but all together only as much as the original grant.
    with pytest.raises(RateExceeded, match="60 requests a minute"):
        quotas.admit(passed_on[2], asked())
    assert tickets[0].headers()["x-ratelimit-limit-requests"] == "60"
    assert {one.name for one in quotas.spent()} >= {"g", "g.0", "g.1"}


def test_the_headers_tell_the_scarcest_limit_of_each_kind(quotas):
    limits = (ModelLimit(model="big", rpm=600, tpm=500), ModelLimit(model="b*", tpm=100_000))
    ticket = quotas.admit(by(rpm=60, tpm=10_000, model_limits=limits), asked(model="big"))
    headers = ticket.headers()
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-limit-tokens"] == "500"
    assert headers["x-ratelimit-remaining-tokens"] == str(500 - estimated(asked()))


def test_a_caller_over_several_limits_waits_for_the_longest(quotas):
    ann = by(rpm=60, model_limits=(ModelLimit(model="m", rpm=1),))
    quotas.admit(ann, asked())
    quotas.admit(ann, asked(model="n"))
    with pytest.raises(RateExceeded, match="for m") as refused:
        quotas.admit(ann, asked())
    assert refused.value.retry_after == pytest.approx(60.0)


def test_tokens_and_concurrent_requests_of_a_model_are_settled_too(quotas):
    ann = by(model_limits=(ModelLimit(model="m", concurrency=1, tokens_per_day=1_000),))
    first = quotas.admit(ann, asked())
    with pytest.raises(TooManyAtOnce, match="for m"):
        quotas.admit(ann, asked())
    first.settle(1_000)
    with pytest.raises(DaySpent, match="for m"):
        quotas.admit(ann, asked())
    assert quotas.admit(ann, asked(model="other")) is None


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("big", {"model": "big"}),
        ("big", {"model": "lab/big"}),
        ("big*", {"model": "small", "fallbacks": ("tiny", "big-1")}),
        ("lab/big", {"model": "lab/big"}),
        # The model of `lab` may answer it.
        ("lab/big", {"model": "big"}),
        ("lab/big", {"model": "big", "pin": Pin(project="lab")}),
        ("*", {"model": ""}),
    ],
)
def test_no_other_way_to_name_a_model_gets_around_its_limit(quotas, pattern, said):
    ann = by(model_limits=(ModelLimit(model=pattern, rpm=1),))
    assert quotas.admit(ann, asked(**said)) is not None


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("big", {"model": "bigger"}),
        ("big", {"model": "BIG"}),
        ("lab/big", {"model": "other/big"}),
        ("lab/big", {"model": "big", "pin": Pin(project="other")}),
    ],
)
def test_a_limit_of_other_models_does_not_count(quotas, pattern, said):
    assert quotas.admit(by(model_limits=(ModelLimit(model=pattern, rpm=1),)), asked(**said)) is None


def test_what_is_spent_on_a_model_is_told_to_other_nodes_separately(quotas):
    quotas.admit(by(rpm=60, model_limits=(ModelLimit(model="m*", rpm=60),)), asked())
    assert {spending.name for spending in quotas.spent()} == {"ann", "ann m*"}
    quotas.learn(QuotaStanding("ann m*", 50.0, 0.0, 0.0, date=100))
    with pytest.raises(RateExceeded, match=r"for m\*"):
        quotas.admit(by(model_limits=(ModelLimit(model="m*", rpm=60),)), asked())


@pytest.fixture
def open_(now, wall):
    return Quotas(now, wall, KeyLimits(rpm=60, concurrency=3))


def test_without_a_key_an_address_has_limits(open_, now):
    one, other = Principal(address="192.0.2.7"), Principal(address="192.0.2.8")
    ticket = open_.admit(one, asked())
    open_.admit(one, asked())
    with pytest.raises(RateExceeded, match="without a key, one address may have 60") as refused:
        open_.admit(one, asked())
    assert refused.value.retry_after == pytest.approx(1.0)
    assert "192.0.2.7" not in str(refused.value)
    assert open_.admit(other, asked()) is not None
    assert ticket.headers()["x-ratelimit-remaining-requests"] == "0"
    now.now = 60.0
    open_.admit(one, asked())
    with pytest.raises(TooManyAtOnce):
        open_.admit(one, asked())
    ticket.settle(None)
    assert open_.admit(one, asked()) is not None


def test_limits_of_addresses_apply_neither_to_keys_nor_without_an_address(open_):
    for _ in range(10):
        assert open_.admit(by(), asked()) is None
        assert open_.admit(ANYBODY, asked()) is None


def test_the_spending_of_addresses_is_not_told_to_other_nodes(open_):
    open_.admit(Principal(address="192.0.2.7"), asked())
    assert [*open_.spent()] == []


def test_beyond_the_most_addresses_the_one_that_asked_longest_ago_begins_anew(open_):
    def spend(address):
        open_.admit(Principal(address=address), asked())
        open_.admit(Principal(address=address), asked())

    spend("first")
    spend("second")
    for index in range(MAX_ADDRESSES - 2):
        open_.admit(Principal(address=str(index)), asked())
    with pytest.raises(RateExceeded):
        open_.admit(Principal(address="first"), asked())
    open_.admit(Principal(address="one more"), asked())
    assert len(open_._addresses) == MAX_ADDRESSES
    spend("second")
    with pytest.raises(RateExceeded):
        open_.admit(Principal(address="first"), asked())
