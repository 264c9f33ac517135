"""Cost of keys: microseconds to look one up among many, to refuse a forged one, and to count a request against its limits.

Also of grants: a known one, and new ones that are forged, widened or expired; and of receipts: to add one, and to write it.

python -m bench.keys [--keys 10000]
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.auth import grants
from node.auth.books import ReceiptBook
from node.auth.errors import GrantRefused, KeyExpired, KeyUnknown, RateExceeded
from node.auth.grants import Grant, Terms
from node.auth.key_table import GrantRules, KeyTable
from node.auth.keys import ApiKey, hash_of, new_secret
from node.auth.principal import Principal, holder_of
from node.auth.quotas import Quotas
from node.auth.receipts import ReceiptLog, Side
from registry import signing
from registry.signing import Identity
from registry.store.memory import MemoryStore
from router.openai.usage import Usage
from router.requests import Kind, Request

ROUNDS = 7
RECEIPTS = 375
"""Receipts in one write: those of a quarter of a second at 1,500 answers a second."""
GRANTS, NOW = 1_000, 1.0
TERMS, WIDE, OVER = Terms(expires=2**31, models=("llama*",)), Terms(expires=2**31), Terms(expires=1)


def microseconds(work: Callable[[str], object], secrets: Sequence[str]) -> float:
    """Return the median time of one call, over several rounds of all secrets."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for secret in secrets:
            work(secret)
        rounds.append((time.perf_counter() - began) / len(secrets) * 1e6)
    return statistics.median(rounds)


def main() -> None:
    """Measure, and print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000, metavar="N", help="keys of the site")
    count = parser.parse_args().keys
    secrets = [new_secret() for _ in range(count)]
    limits = {"models": ("llama*",), "rpm": 600_000, "tpm": 10**9, "tokens_per_day": 10**9}
    issuer, forger = Identity(bytes(range(32))), Identity(bytes(range(1, 33)))
    table = KeyTable(
        (
            ApiKey(name=f"user-{index}", hash=hash_of(secret), **limits)
            for index, secret in enumerate(secrets)
        ),
        GrantRules("here", frozenset({issuer.peer})),
    )
    body = b'{"model":"llama","max_tokens":9,"messages":[{"role":"user","content":"%b"}]}' % (
        b"x" * 900
    )
    request = Request("r", Kind.CHAT, "llama", body, "application/json")
    quotas = Quotas(time.monotonic, time.time)

    def known(secret: str) -> Principal:
        holder = holder_of(secret, table, 1.0, keyless=lambda: False)
        holder.check_models("llama")
        return holder

    def forged(secret: str) -> None:
        try:
            holder_of(f"{secret}x", table, 1.0, keyless=lambda: False)
        except KeyUnknown:
            return
        raise AssertionError

    def refused(text: str) -> None:
        try:
            holder_of(text, table, NOW, keyless=lambda: False)
        except (GrantRefused, KeyExpired):
            return
        raise AssertionError

    def counted(secret: str) -> None:
        try:
            ticket = quotas.admit(known(secret), request)
        except RateExceeded:
            return
        if ticket is not None:
            ticket.settle(50)

    print(f"{count:,} keys, microseconds, medians of {ROUNDS} rounds")
    for name, work in (("known", known), ("forged", forged), ("known and counted", counted)):
        print(f"{name:<20}{microseconds(work, secrets):6.1f}")
    _measure_grants(issuer, forger, known, refused)
    asyncio.run(_measure_receipts(issuer))


async def _measure_receipts(identity: Identity) -> None:
    book = ReceiptBook(time.time)
    log = ReceiptLog(book, MemoryStore(), identity, time.time, days=30)

    def added(request: str) -> None:
        book.add(Side.ASKED, "n" * 43, request, "llama", Usage(100, 200), 0.5)

    requests, add, write = [f"request-{index}" for index in range(RECEIPTS)], [], []
    for _ in range(10 * ROUNDS):
        began = time.perf_counter()
        for request in requests:
            added(request)
        between = time.perf_counter()
        await log.write()
        add.append((between - began) / RECEIPTS * 1e6)
        write.append((time.perf_counter() - between) / RECEIPTS * 1e6)
    print(f"{'receipt, added':<20}{statistics.median(add):6.1f}")
    print(f"{'receipt, written':<20}{statistics.median(write):6.1f}")


def _measure_grants(
    issuer: Identity,
    forger: Identity,
    lookup: Callable[[str], object],
    refused: Callable[[str], object],
) -> None:
    shown = [grants.written(grants.issue(issuer, TERMS)) for _ in range(GRANTS)]
    print(f"{'grant':<20}{microseconds(lookup, shown):6.1f}")
    body, signature = b"x" * 200, issuer.sign(b"bench\0", b"x" * 200)
    print(
        f"{'one signature':<20}"
        f"{microseconds(lambda _: signing.verify(issuer.public, b'bench' + bytes(1), body, signature), shown):6.1f}"
    )
    for name, texts in (
        ("grant, forged", [grants.written(_forged(issuer, forger)) for _ in range(GRANTS)]),
        ("grant, widened", [grants.written(_widened(issuer)) for _ in range(GRANTS)]),
        ("grant, expired", [grants.written(grants.issue(issuer, OVER)) for _ in range(GRANTS)]),
    ):
        print(f"{name:<20}{microseconds(refused, texts):6.1f}")


def _forged(issuer: Identity, forger: Identity) -> Grant:
    """Return a grant that names an issuer but is signed with another key."""
    issued = grants.issue(forger, TERMS)
    return Grant(issuer.public, issued.blocks, issued.secret)


def _widened(issuer: Identity) -> Grant:
    """Return a grant whose first block is replaced by one for all models, with the signature of the original."""
    issued, wide = grants.issue(issuer, TERMS), grants.issue(issuer, WIDE)
    block = replace(wide.blocks[0], signature=issued.blocks[0].signature)
    return Grant(issuer.public, (block,), wide.secret)


if __name__ == "__main__":
    main()
