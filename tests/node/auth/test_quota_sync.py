"""Sync of quotas between processes and nodes: spending that could not be told is not lost, and not paid twice."""

import pytest

from node.auth.errors import DaySpent, RateExceeded
from node.auth.keys import ApiKey, QuotaSpending, hash_of
from node.auth.principal import Principal
from node.auth.quota_sync import OwnCounters, QuotaSync
from node.auth.quotas import Quotas
from node.auth.rate_limit import DAY
from registry.errors import StoreUnavailable
from registry.store import Count
from router.requests import Kind, Request

ASKED = Request("r", Kind.CHAT, "m", b"{}", "application/json")
ANN = Principal(ApiKey(name="ann", hash=hash_of("ann"), rpm=60, tokens_per_day=1_000))


LONG = b'{"max_tokens":500}'


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Shared(OwnCounters):
    """Counters of a site; they may be away."""

    broken = False
    rounds = 0

    async def count(self, counts):
        self.rounds += 1
        if self.broken:
            raise StoreUnavailable("it is away")
        return await super().count(counts)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shared(clock):
    return Shared(clock)


@pytest.fixture
def nodes(clock, shared):
    quotas = [Quotas(clock, clock) for _ in range(2)]
    return [(one, QuotaSync(one, shared)) for one in quotas]


def passes(quotas):
    try:
        quotas.admit(ANN, ASKED).settle(0)
    except RateExceeded:
        return False
    return True


async def test_a_limit_holds_over_two_nodes(clock, nodes):
    done = []
    for step in range(90 * 20):
        clock.now = step / 20
        for quotas, sync in nodes:
            if passes(quotas):
                done.append(clock.now)
            if step % 2 == 0:
                await sync.round()
    worst = max(sum(1 for t in done if start <= t < start + 60) for start in done)
    assert 58 <= worst <= 63
    assert len(done) >= 88


async def test_a_days_tokens_are_one_sum_over_the_nodes(clock, nodes):
    (one, first), (two, second) = nodes
    one.admit(ANN, ASKED).settle(600)
    two.admit(ANN, ASKED).settle(400)
    for sync in (first, second, first):
        await sync.round()
    clock.now = 10.0
    for quotas in (one, two):
        with pytest.raises(DaySpent):
            quotas.admit(ANN, ASKED)
    clock.now = DAY + 1
    assert passes(one)


@pytest.mark.parametrize("away", [False, True], ids=["store", "no store"])
async def test_no_day_gets_back_what_was_reserved_on_the_day_before(clock, nodes, shared, away):
    (one, first), (two, second) = nodes
    clock.now = DAY - 1
    early, late = (one.admit(ANN, Request("r", Kind.CHAT, "m", LONG, "")) for _ in range(2))
    await first.round()
    early.settle(20)
    shared.broken = away
    # The helper's process reports before midnight too, and is heard after it.
    first.hear([QuotaSpending("ann", 0.0, 0.0, -5_000, date=0)])
    clock.now = DAY + 0.1
    await first.round()
    shared.broken = False
    late.settle(30)
    two.admit(ANN, ASKED).settle(40)
    for sync in (first, second, first):
        await sync.round()
    assert [quotas._books["ann"].day.used for quotas in (one, two)] == [70, 70]


async def test_what_helpers_spend_counts_and_helpers_are_told_the_total(nodes):
    quotas, sync = nodes[0]
    standings = []
    sync.on_standing(standings.append)
    sync.hear([QuotaSpending("ann", 3.0, 0.0, 10, date=0)])
    sync.hear([QuotaSpending("ann", 4.0, 0.0, 20, date=0)])
    await sync.round()
    assert not passes(quotas)
    [[standing]] = standings
    assert (standing.name, standing.requests, standing.day) == ("ann", pytest.approx(7.0), 30)


async def test_the_counters_are_not_asked_where_nothing_was_spent(nodes, shared):
    await nodes[0][1].round()
    assert shared.rounds == 0


async def test_while_the_counters_are_away_each_node_counts_for_itself(clock, nodes, shared):
    (one, first), (two, _) = nodes
    shared.broken = True
    assert [passes(one) for _ in range(4)] == [True, True, False, False]
    await first.round()
    assert [passes(two) for _ in range(4)] == [True, True, False, False]
    clock.now = 1.0
    assert passes(one)
    shared.broken = False
    await first.round()
    assert not passes(one)


async def test_after_a_long_outage_old_spending_is_not_charged_again(clock, nodes, shared):
    quotas, sync = nodes[0]
    shared.broken = True
    for step in range(600):
        clock.now = float(step)
        passes(quotas)
        await sync.round()
    shared.broken = False
    clock.now += 2
    await sync.round()
    assert passes(quotas)


async def test_the_spending_of_many_keys_is_told_in_parts(clock, shared, monkeypatch):
    monkeypatch.setattr("node.auth.quota_sync.MAX_KEYS", 2)
    quotas = Quotas(clock, clock)
    for name in "abcde":
        quotas.admit(Principal(ApiKey(name=name, hash=hash_of(name), rpm=1)), ASKED)
    await QuotaSync(quotas, shared).round()
    assert shared.rounds == 3


async def test_own_counters_keep_a_due_time_until_it_has_come(clock):
    counters = OwnCounters(clock)
    for _ in range(2):
        await counters.count([Count("a", 500, ttl=10, due=True)])
    clock.now = 900.0
    assert await counters.count([Count("a", 0, ttl=10, due=True)]) == [100]
    clock.now = 1001.0
    assert await counters.count([Count("a", 0, ttl=10, due=True)]) == [0]
    assert counters._counters == {}


async def test_own_counters_forget_counts_whose_time_is_over(clock):
    counters = OwnCounters(clock)
    assert await counters.count([Count("a", 5, ttl=10), Count("b", 5, ttl=10, due=True)]) == [5, 5]
    clock.now = 3.0
    assert await counters.count([Count("a", 1, ttl=10), Count("b", 0, ttl=10, due=True)]) == [6, 2]
    clock.now = 50.0
    assert await counters.count([Count("a", 0, ttl=10), Count("b", 0, ttl=10, due=True)]) == [0, 0]
    assert counters._counters == {}
