"""Quotas of keys: how much each may ask, and how many requests at one time.

A request takes its part before it is routed, and settles it at its end.

Tokens are reserved by estimate, and settled by what the answer tells. The books are this process's own; `Quotas.spent` and
`learn` keep them in step with those of others.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from node.auth.errors import DaySpent, Limited, RateExceeded, TooManyAtOnce
from node.auth.keys import ApiKey
from node.auth.principal import Principal
from node.auth.rate_limit import DayBudget, Gcra, Rate, requests_a_minute, tokens_a_minute
from registry.clock import Clock
from router.openai.usage import TEXT
from router.requests import Request

USUAL_TOKENS = 256
"""Tokens that an answer is taken to have where its request says no limit."""

BYTES_PER_TOKEN = 4

QUIET_SECONDS = 120.0
"""How long a key's books are kept in step with others' after its last request."""

_LIMIT = re.compile(rb'"max_(?:completion_|output_)?tokens"\s{0,8}:\s{0,8}(\d{1,7})')


@dataclass(frozen=True, slots=True)
class QuotaSpending:
    """What one key has spent here that others have not heard of: seconds of both rates, and tokens of the day."""

    name: str
    requests: float
    tokens: float
    day: float


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """How all processes together stand with one key: seconds ahead by both rates, and tokens of the day."""

    name: str
    requests: float
    tokens: float
    day: float


class Books:
    """What one key has used."""

    __slots__ = ("day", "last", "requests", "tokens", "under_way")

    def __init__(self) -> None:
        self.requests = Gcra()
        self.tokens = Gcra()
        self.day = DayBudget()
        self.under_way = 0
        self.last = -math.inf


class QuotaTicket:
    """One request's part of a quota."""

    __slots__ = ("_books", "_key", "_now", "_reserved", "_wall")

    def __init__(self, key: ApiKey, books: Books, reserved: int, now: Clock, wall: Clock) -> None:
        self._key = key
        self._books: Books | None = books
        self._reserved = reserved
        self._now = now
        self._wall = wall

    def settle(self, tokens: int | None) -> None:
        """The request has ended, and took so many tokens; `None` where nobody tells: then the estimate counts. Once."""
        books, self._books = self._books, None
        if books is None:
            return
        books.under_way -= 1
        if tokens is None or not (self._key.tpm or self._key.tokens_per_day):
            return
        more = tokens - self._reserved
        if self._key.tpm:
            books.tokens.spend(self._now(), tokens_a_minute(self._key.tpm), more)
        if self._key.tokens_per_day:
            books.day.spend(self._wall(), more)

    def headers(self) -> dict[str, str]:
        """Return what OpenAI's clients read of their limits."""
        return headers_of(self._key, self._books, self._now()) if self._books else {}


class Quotas:
    """The books of all keys. Lives on one event loop."""

    def __init__(self, now: Clock, wall: Clock) -> None:
        """`now` is monotonic, `wall` Unix time."""
        self._now = now
        self._wall = wall
        self._books: dict[str, Books] = {}

    def admit(self, principal: Principal, request: Request) -> QuotaTicket | None:
        """Take a request's part, `None` where nothing limits who asks; raise a `Limited` error where there is none left."""
        key = principal.key
        if key is None or not (key.rpm or key.tpm or key.tokens_per_day or key.concurrency):
            return None
        books = self._books.setdefault(key.name, Books())
        now = books.last = self._now()
        estimate = estimated(request) if key.tpm or key.tokens_per_day else 0
        if (error := self._objection(key, books, now, estimate)) is not None:
            raise error
        if key.rpm:
            books.requests.spend(now, requests_a_minute(key.rpm), 1)
        if key.tpm:
            books.tokens.spend(now, tokens_a_minute(key.tpm), estimate)
        if key.tokens_per_day:
            books.day.spend(self._wall(), estimate)
        books.under_way += 1
        return QuotaTicket(key, books, estimate, self._now, self._wall)

    def spent(self) -> Iterator[QuotaSpending]:
        """Tell, once, what was spent here, by each key that was used lately; forget the others."""
        now = self._now()
        for name, books in tuple(self._books.items()):
            requests, tokens, day = books.requests, books.tokens, books.day
            if now - books.last > QUIET_SECONDS and not books.under_way and not day.spent:
                # The day's budget has to be known when it is used again that day.
                day.turn(self._wall())
                if not day.used:
                    del self._books[name]
                continue
            yield QuotaSpending(name, requests.spent, tokens.spent, day.spent)
            requests.spent = tokens.spent = day.spent = 0.0

    def give_back(self, told: QuotaSpending) -> None:
        """Nobody could be told of this: it is told with what comes next, as far as it still matters then."""
        books, now = self._books.setdefault(told.name, Books()), self._now()
        for gcra, spent in ((books.requests, told.requests), (books.tokens, told.tokens)):
            gcra.spent = min(gcra.spent + spent, max(gcra.due - now, 0.0))
        books.day.spent += told.day

    def learn(self, standing: QuotaStanding) -> None:
        """Take in how all together stand with a key."""
        books, now = self._books.setdefault(standing.name, Books()), self._now()
        books.requests.learn(now, standing.requests)
        books.tokens.learn(now, standing.tokens)
        books.day.learn(self._wall(), standing.day)

    def _objection(self, key: ApiKey, books: Books, now: float, estimate: int) -> Limited | None:
        kind: type[Limited] = RateExceeded
        wait, words = 0.0, ""
        if key.concurrency and books.under_way >= key.concurrency:
            kind, wait = TooManyAtOnce, 1.0
            words = f"{key.concurrency} requests under way at one time"
        elif key.rpm and (wait := books.requests.wait(now, requests_a_minute(key.rpm), 1)):
            words = f"{key.rpm:,} requests a minute, evenly spread"
        elif key.tpm and (wait := books.tokens.wait(now, tokens_a_minute(key.tpm), estimate)):
            words = f"{key.tpm:,} tokens a minute"
        elif key.tokens_per_day and (wait := books.day.wait(self._wall(), key.tokens_per_day)):
            kind, words = DaySpent, f"{key.tokens_per_day:,} tokens a day, and they are spent"
        if not wait:
            return None
        return kind(f"this key allows {words}", wait, headers_of(key, books, now))


def estimated(request: Request) -> int:
    """Return how many tokens a request may take: what it says, and what it lets an answer have. Other than texts: 0."""
    if request.kind not in TEXT:
        return 0
    limits = [int(found) for found in _LIMIT.findall(request.body)]
    return len(request.body) // BYTES_PER_TOKEN + max(limits, default=USUAL_TOKENS)


def headers_of(key: ApiKey, books: Books, now: float) -> dict[str, str]:
    """Return a key's limits, what is left of them, and when all of it will be, as OpenAI's headers have it."""
    headers: dict[str, str] = {}
    for unit, limit, rate, gcra in (
        ("requests", key.rpm, requests_a_minute, books.requests),
        ("tokens", key.tpm, tokens_a_minute, books.tokens),
    ):
        if limit:
            headers |= _shown(unit, rate(limit), gcra, now)
    return headers


def _shown(unit: str, rate: Rate, gcra: Gcra, now: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": str(rate.limit),
        f"x-ratelimit-remaining-{unit}": str(gcra.left(now, rate)),
        f"x-ratelimit-reset-{unit}": f"{max(gcra.due - now, 0.0):.3f}s",
    }
