"""Cost of keys: microseconds to look one up among many, to refuse one that is forged, and to count a request against its limits.

python -m bench.keys [--keys 10000]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from node.auth.errors import KeyUnknown, RateExceeded
from node.auth.key_ring import KeyTable
from node.auth.keys import ApiKey, hash_of, new_secret
from node.auth.principal import Principal, holder_of
from node.auth.quotas import Quotas
from router.requests import Kind, Request

ROUNDS = 7


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
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000, metavar="N", help="keys of the site")
    count = parser.parse_args().keys
    secrets = [new_secret() for _ in range(count)]
    limits = {"models": ("llama*",), "rpm": 600_000, "tpm": 10**9, "tokens_per_day": 10**9}
    table = KeyTable(
        ApiKey(name=f"user-{at}", hash=hash_of(secret), **limits)
        for at, secret in enumerate(secrets)
    )
    body = b'{"model":"llama","max_tokens":9,"messages":[{"role":"user","content":"%b"}]}' % (
        b"x" * 900
    )
    request = Request("r", Kind.CHAT, "llama", body, "application/json")
    quotas = Quotas(time.monotonic, time.time)

    def known(secret: str) -> Principal:
        found = holder_of(secret, table, 1.0, keyless=False)
        found.ask("llama")
        return found

    def forged(secret: str) -> None:
        try:
            holder_of(f"{secret}x", table, 1.0, keyless=False)
        except KeyUnknown:
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


if __name__ == "__main__":
    main()
