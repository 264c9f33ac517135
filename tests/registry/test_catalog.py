"""Laws of the catalog: any order of merging gives the same registry, its index is right, and its maps persist."""

import hashlib
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import wire
from registry.catalog import (
    BUCKETS,
    Catalog,
    Offer,
    PersistentMap,
    Signed,
    bucket_of,
    names_of,
    newer,
)
from registry.records import PeerId, Record, Service, Standing, Version
from registry.signing import ID_HEAD, Identity
from tests.strategies import IDENTITIES, few_versions, words

ME, OTHER = IDENTITIES[:2]
LLAMA = Service("p", "llama")
piles = st.lists(words, max_size=12)


def say(
    *services: Service, at: Version, standing: Standing = Standing.SERVING, agent: str = ""
) -> Signed:
    return wire.encode_record(Record(ME.peer, at, standing, services, agent=agent), ME)


def named(owner: Identity, name: str) -> Signed:
    return wire.encode_record(Record(owner.peer, Version(1, 1), name=name), owner)


def test_a_node_is_found_by_its_id_by_the_beginning_of_one_and_by_its_name() -> None:
    both = Catalog().merge([named(ME, "gpu-1"), named(OTHER, "gpu-1")])
    expected = (both.held[ME.peer].record,)
    assert both.find_records(ME.peer) == both.find_records(ME.peer[:24]) == expected
    assert {record.node for record in both.find_records(ME.peer[: len(ID_HEAD) + 1])} >= {ME.peer}
    assert {record.node for record in both.find_records("gpu-1")} == {ME.peer, OTHER.peer}
    assert (
        Catalog().merge([named(ME, "gpu-1"), named(OTHER, "gpu-2")]).find_records("gpu-1")
        == expected
    )


def test_what_all_ids_have_in_common_and_the_empty_text_name_no_node() -> None:
    nameless = Catalog().merge([named(ME, "")])
    for text in ("", ID_HEAD, ID_HEAD[:4], ME.peer[:-1] + "x", ME.peer[4:]):
        assert nameless.find_records(text) == ()


def sets(catalog: Catalog) -> dict[str, set[Offer]]:
    """Return the offers as they are held, of which none is there twice."""
    assert all(len(offers) == len({*offers}) for offers in catalog.offers.values())
    return {name: {*offers} for name, offers in catalog.offers.items()}


def index_of(catalog: Catalog) -> dict[str, set[Offer]]:
    """Return the offers, worked out anew from what is held."""
    offers: dict[str, set[Offer]] = {}
    for node, signed in catalog.held.items():
        for service in signed.record.services:
            for name in names_of(service):
                offers.setdefault(name, set()).add(Offer(node, service))
    return offers


def digests_of(catalog: Catalog) -> list[bytes]:
    """Return the digests of all buckets, worked out anew from what is held."""
    contents: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    for node, signed in catalog.held.items():
        contents[bucket_of(node)].append(signed.fingerprint)
    return [hashlib.sha256(b"".join(sorted(prints))).digest()[:8] for prints in contents]


@given(piles)
def test_the_digests_of_buckets_are_those_of_what_is_in_them_after_every_change(
    pile: list[Signed],
) -> None:
    catalog = Catalog()
    for signed in pile:
        catalog = catalog.merge([signed])
        assert [bucket.digest for bucket in catalog.held.parts] == digests_of(catalog)
    for signed in pile[::2]:
        catalog = catalog.without(signed.record.node)
        assert [bucket.digest for bucket in catalog.held.parts] == digests_of(catalog)


@given(piles, st.randoms(use_true_random=False))
def test_the_order_of_delivery_does_not_matter(pile: list[Signed], rng: Random) -> None:
    shuffled = sorted(pile, key=lambda _: rng.random())
    one_by_one = Catalog()
    for signed in shuffled:
        one_by_one = one_by_one.merge([signed])
    assert one_by_one == Catalog().merge(pile)


@given(piles, piles)
def test_merging_commutes(a: list[Signed], b: list[Signed]) -> None:
    assert Catalog().merge(a).merge(b) == Catalog().merge(b).merge(a)


@given(piles, piles, piles)
def test_merging_associates(a: list[Signed], b: list[Signed], c: list[Signed]) -> None:
    b_with_c = Catalog().merge(b).merge(c).held.values()
    assert Catalog().merge(a).merge(b).merge(c) == Catalog().merge(a).merge(b_with_c)


@given(piles)
def test_merging_again_changes_nothing_and_says_so(pile: list[Signed]) -> None:
    catalog = Catalog().merge(pile)
    assert catalog.merge(pile) is catalog
    assert catalog.merge([]) is catalog


@given(piles, piles)
def test_equal_digests_mean_equal_registries(a: list[Signed], b: list[Signed]) -> None:
    one, other = Catalog().merge(a), Catalog().merge(b)
    assert (one.digest == other.digest) == (one.held == other.held)


def test_the_digest_of_an_empty_registry_is_zero_in_64_digits() -> None:
    assert Catalog().digest == "0" * 64


@given(piles, piles, st.sampled_from(IDENTITIES))
def test_the_index_is_always_the_one_made_from_scratch(
    a: list[Signed], b: list[Signed], gone: Identity
) -> None:
    catalog = Catalog()
    for step in (catalog.merge(a), catalog.merge(a).merge(b)):
        assert sets(step) == index_of(step)
    without = catalog.merge(a).without(gone.peer).merge(b)
    assert sets(without) == index_of(without)


@given(piles, piles)
def test_a_version_never_goes_back(a: list[Signed], b: list[Signed]) -> None:
    before = Catalog().merge(a)
    after = before.merge(b)
    for node, signed in before.held.items():
        assert after.held[node].record.version >= signed.record.version


@given(piles, st.sampled_from([identity.peer for identity in IDENTITIES]))
def test_forgetting_a_node_leaves_what_was_never_about_it(pile: list[Signed], node: PeerId) -> None:
    others = [signed for signed in pile if signed.record.node != node]
    assert Catalog().merge(pile).without(node) == Catalog().merge(others)


def test_forgetting_a_stranger_changes_nothing() -> None:
    catalog = Catalog().merge([say(at=Version(1, 1))])
    assert catalog.without(OTHER.peer) is catalog


@given(st.lists(few_versions, min_size=1, max_size=4))
def test_two_records_of_one_version_are_settled_alike_everywhere(at: list[Version]) -> None:
    rivals = [say(at=version, agent=str(n)) for n, version in enumerate(at)]
    kept = {Catalog().merge(order).held[ME.peer] for order in permutations(rivals)}
    assert len(kept) == 1


def test_the_newer_of_two_records_is_chosen_whichever_is_named_first() -> None:
    old, new = say(LLAMA, at=Version(1, 9)), say(at=Version(2, 0))
    assert newer(old, new) is new
    assert newer(new, old) is new


def test_a_model_is_found_by_its_name_with_and_without_its_project() -> None:
    catalog = Catalog().merge([say(LLAMA, at=Version(1, 1))])
    offer = (Offer(ME.peer, LLAMA),)
    assert catalog.offers == {"llama": offer, "p/llama": offer}


@pytest.mark.parametrize("standing", [Standing.DRAINING, Standing.LEFT])
def test_services_of_a_node_that_drains_or_has_left_are_known_until_it_says_otherwise(
    standing: Standing,
) -> None:
    serving = say(LLAMA, at=Version(1, 1))
    latest = say(LLAMA, at=Version(1, 2), standing=standing)
    catalog = Catalog().merge([serving, latest])
    assert set(catalog.offers) == {"llama", "p/llama"}
    assert catalog.held[ME.peer] is latest
    assert catalog.merge([serving]) is catalog
    assert not catalog.merge([say(at=Version(2, 1))]).offers
    assert not catalog.merge([say(at=Version(1, 3), standing=standing)]).offers


def test_a_snapshot_in_the_hands_of_a_reader_never_changes() -> None:
    before = Catalog().merge([say(LLAMA, at=Version(1, 1))])
    held, offers, digest = dict(before.held), dict(before.offers), before.digest
    before.merge([say(at=Version(1, 2))])
    before.without(ME.peer)
    assert (before.held, before.offers, before.digest) == (held, offers, digest)


PARTS = 4
changes = st.lists(
    st.tuples(st.dictionaries(st.integers(), st.integers()), st.lists(st.integers())), max_size=8
)


def nothing() -> PersistentMap[int, int, dict[int, int]]:
    return PersistentMap(tuple({} for _ in range(PARTS)), lambda key: key % PARTS, dict[int, int])


@given(changes)
def test_changes_have_the_same_outcome_as_in_a_plain_map(steps: list[Any]) -> None:
    parted, plain = nothing(), dict[int, int]()
    for put, drop in steps:
        before, expected = parted, dict(parted)
        parted = parted.with_changes(put, drop)
        plain = {key: value for key, value in plain.items() if key not in drop} | put
        assert dict(parted) == plain
        assert len(parted) == len(plain)
        assert dict(before) == expected


@given(st.dictionaries(st.integers(), st.integers(), min_size=1))
def test_every_key_is_found_and_no_other(entries: dict[int, int]) -> None:
    parted = nothing().with_changes(entries)
    assert all(parted[key] == value for key, value in entries.items())
    assert parted.get(max(entries) + 1) is None


def test_a_change_makes_its_own_part_anew_and_shares_the_others() -> None:
    before = nothing().with_changes({1: 1, 2: 2})
    after = before.with_changes({5: 5})
    fresh = [number for number in range(PARTS) if after.parts[number] is not before.parts[number]]
    assert fresh == [1]


def test_without_a_change_the_map_stays_the_same_object() -> None:
    before = nothing().with_changes({1: 1})
    assert before.with_changes({}) is before
