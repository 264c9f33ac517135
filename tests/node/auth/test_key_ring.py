"""Keys of a site: created, rotated and revoked at one node, known at the others; also with a store that fails."""

import asyncio

import pytest

from node.auth.errors import KeyExists, NoSuchKey
from node.auth.grants import Terms, issue, written
from node.auth.key_ring import CONTROL_TOKEN, KEPT_SECONDS, MAX_REVOCATIONS, KeyRing
from node.auth.keys import Allowance, ApiKey, Role, hash_of
from registry.errors import LimitReached, StoreUnavailable
from registry.records import Revocation
from registry.store import Put, Space
from registry.wire import MAX_REVOKED
from tests.failing_store import FailingStore
from tests.strategies import IDENTITIES

TOKEN = "a-control-token-of-some-length-123"
ANN = {"ann": Allowance(models=("llama*",), rpm=60)}


class SiteStore(FailingStore):
    """Store that the nodes of a site share."""

    shared = True

    def empty(self):
        for rows in self._spaces.values():
            rows.clear()


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store():
    return SiteStore()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def ring(store, clock):
    made = KeyRing(store, clock, token=TOKEN)
    await made.restore()
    return made


async def test_a_key_is_shown_once_and_kept_as_a_hash(ring, store):
    secret = (await ring.create(ANN))["ann"]
    key = ring.find(secret)
    assert (key.name, key.models, key.rpm, key.created) == ("ann", ("llama*",), 60, 1_000)
    stored = b"".join((await store.read(Space.KEYS)).values())
    assert secret.encode() not in stored
    assert hash_of(secret).encode() in stored
    assert secret.startswith(key.hint)


async def test_the_control_token_is_an_operators_key_that_is_not_stored(ring, store):
    assert ring.find(TOKEN).role is Role.OPERATOR
    assert ring.keys == []
    assert await store.read(Space.KEYS) == {}
    for change in (ring.rotate, ring.revoke):
        with pytest.raises(NoSuchKey):
            await change(CONTROL_TOKEN)
    with pytest.raises(KeyExists):
        await ring.create({CONTROL_TOKEN: Allowance()})


async def test_an_empty_token_is_no_key(store, clock):
    assert KeyRing(store, clock, token="").find("") is None


async def test_a_key_survives_a_restart(ring, store, clock):
    secret = (await ring.create(ANN))["ann"]
    again = KeyRing(store, clock)
    await again.restore()
    assert again.find(secret) == ring.find(secret)


async def test_a_rotated_key_allows_the_same_and_the_old_one_is_unknown(ring):
    old = (await ring.create(ANN))["ann"]
    new = await ring.rotate("ann")
    assert ring.find(old) is None
    assert ring.find(new).models == ("llama*",)


async def test_a_revoked_key_is_reported_as_revoked_and_its_name_is_free(ring, clock):
    secret = (await ring.create(ANN))["ann"]
    await ring.revoke("ann")
    assert ring.find(secret).end_reason(clock()) == "revoked"
    assert ring.find((await ring.create(ANN))["ann"]).end_reason(clock()) == ""


async def test_a_name_has_one_key(ring):
    await ring.create(ANN)
    with pytest.raises(KeyExists, match="'ann'"):
        await ring.create({"bob": Allowance(), **ANN})
    assert [key.name for key in ring.keys] == ["ann"]
    with pytest.raises(NoSuchKey):
        await ring.revoke("bob")


async def test_keys_are_made_all_or_none(ring, store):
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await ring.create({"a": Allowance(), "b": Allowance()})
    assert ring.keys == []


async def test_the_keys_of_a_site_are_bounded_and_those_that_ended_long_ago_are_forgotten(
    ring, clock, monkeypatch
):
    monkeypatch.setattr("node.auth.key_ring.MAX_KEYS", 2)
    await ring.create({"a": Allowance(), "b": Allowance()})
    with pytest.raises(LimitReached):
        await ring.create({"c": Allowance()})
    await ring.revoke("a")
    clock.now += KEPT_SECONDS + 1
    await ring.create({"c": Allowance()})


async def test_a_node_learns_of_another_nodes_changes_with_its_next_look(ring, store, clock):
    other = KeyRing(store, clock)
    await other.restore()
    secret = (await ring.create(ANN))["ann"]
    changes = []
    other.on_change(changes.append)
    await other.sync()
    assert other.find(secret).name == "ann"
    assert len(changes) == 1
    await other.revoke("ann")
    await ring.sync()
    assert ring.find(secret).end_reason(clock()) == "revoked"


async def test_a_look_that_finds_nothing_new_reads_one_small_value(ring, store):
    await ring.create(ANN)
    await ring.sync()
    store.reads.clear()
    await ring.sync()
    assert store.reads == [Space.MARKS]


async def test_changes_at_two_nodes_at_once_are_all_known_at_both(store, clock):
    rings = [KeyRing(store, clock) for _ in range(2)]
    await asyncio.gather(
        *(ring.create({f"n{index}": Allowance()}) for index, ring in enumerate(rings))
    )
    for ring in rings:
        await ring.sync()
        assert [key.name for key in ring.keys] == ["n0", "n1"]


async def test_keys_that_are_gone_with_the_stores_content_are_reported_once(ring, store, caplog):
    await ring.create({"ann": Allowance(), "bob": Allowance()})
    await ring.revoke("bob")
    await ring.sync()
    assert not caplog.records
    store.empty()
    for _ in range(2):
        await ring.sync()
    [message] = caplog.messages
    assert message.startswith("the store has none of the 2 keys that this node knew")


async def test_while_the_store_is_away_known_keys_hold_and_one_warning_is_logged(
    ring, store, caplog
):
    secret = (await ring.create(ANN))["ann"]
    store.broken = True
    for _ in range(3):
        await ring.sync()
    assert ring.find(secret) is not None
    assert len(caplog.records) == 1
    store.broken = False
    caplog.set_level("INFO")
    await ring.sync()
    assert caplog.messages[-1] == "the store is available again; keys are up to date"


@pytest.mark.parametrize(
    "row", [b"", b"{}", b"[1]", b"\xff", b'{"name":"bob","hash":"' + b"0" * 64 + b'"}']
)
async def test_a_foreign_row_in_the_store_opens_nothing(store, clock, row):
    await store.write(Put(Space.KEYS, "ann", row))
    ring = KeyRing(store, clock)
    await ring.restore()
    assert ring.keys == []


async def test_a_very_long_text_is_not_looked_up(ring):
    assert ring.find("mv_" + "x" * 10_000_000) is None


# Grants.

ISSUER, PEER = IDENTITIES[0], IDENTITIES[1]
DAY = 86_400.0


def terms(clock, days=7.0):
    return Terms(expires=int(clock.now + days * DAY), models=("llama*",), rpm=60)


@pytest.fixture
async def issuing(store, clock):
    made = KeyRing(store, clock, token=TOKEN, identity=ISSUER)
    await made.restore()
    return made


async def test_a_grant_is_listed_and_revoked_among_the_keys(issuing, store, clock):
    grant = await issuing.grant("ann", terms(clock))
    text = written(grant)
    found = issuing.find(text)
    assert (found.name, found.models, found.rpm, found.end_reason(clock.now)) == (
        "ann",
        ("llama*",),
        60,
        "",
    )
    assert [(key.name, key.issuer, key.grant) for key in issuing.keys] == [
        ("ann", ISSUER.peer, grant.id)
    ]
    stored = b"".join((await store.read(Space.KEYS)).values())
    assert grant.secret.hex().encode() not in stored
    assert text.encode() not in stored
    await issuing.revoke("ann")
    assert issuing.find(text).end_reason(clock.now) == "revoked"


async def test_a_grant_of_one_node_holds_at_all_nodes_of_its_site(issuing, store, clock):
    mate = KeyRing(store, clock, identity=PEER)
    grant = await issuing.grant("ann", terms(clock))
    await mate.restore()
    assert mate.find(written(grant)).name == "ann"
    await mate.revoke("ann")
    # The issuer tells other sites; the other node has nothing to tell.
    assert mate.revocations() == ()
    await issuing.sync()
    assert issuing.revocations() == (Revocation(grant.id, int(clock.now + 7 * DAY)),)


async def test_the_revocation_of_an_expired_grant_is_told_no_more(issuing, clock):
    await issuing.grant("ann", terms(clock, days=1))
    await issuing.revoke("ann")
    assert len(issuing.revocations()) == 1
    clock.now += DAY
    assert issuing.revocations() == ()


async def test_a_grant_cannot_be_rotated_and_its_name_cannot_be_taken(issuing, clock):
    await issuing.grant("ann", terms(clock))
    for call in (issuing.rotate("ann"), issuing.grant("ann", terms(clock)), issuing.create(ANN)):
        with pytest.raises(KeyExists):
            await call


async def test_a_node_signs_no_more_grants_than_it_could_revoke(issuing, clock):
    long, short = terms(clock), terms(clock, days=1)
    issuing._replace(
        ApiKey(name=f"g{n}", hash=f"{n:064x}", issuer=ISSUER.peer, grant=f"{n:032x}", expires=(short if n % 2 else long).expires)
        for n in range(MAX_REVOKED)
    )  # fmt: skip
    with pytest.raises(LimitReached):
        await issuing.grant("ann", long)
    clock.now += DAY
    await issuing.grant("ann", long)


async def test_a_grant_that_a_trusted_issuer_revokes_is_refused_also_after_a_restart(store, clock):
    grant, other = issue(PEER, terms(clock)), Revocation("0f" * 16, 10**9)
    ring = KeyRing(store, clock, identity=ISSUER, trusted=[PEER.peer])
    assert ring.find(written(grant)).end_reason(clock.now) == ""
    ring.take_revocations(PEER.peer, (Revocation(grant.id, grant.expires), other))
    assert ring.find(written(grant)).end_reason(clock.now) == "revoked"
    await ring.sync()
    again = KeyRing(store, clock, identity=ISSUER, trusted=[PEER.peer])
    await again.restore()
    assert again.find(written(grant)).end_reason(clock.now) == "revoked"


async def test_a_revocation_by_an_untrusted_node_has_no_effect(store, clock):
    grant = issue(PEER, terms(clock))
    ring = KeyRing(store, clock, identity=ISSUER, trusted=[PEER.peer])
    ring.take_revocations(IDENTITIES[2].peer, (Revocation(grant.id, grant.expires),))
    assert ring.find(written(grant)).end_reason(clock.now) == ""


async def test_revocations_by_other_nodes_are_bounded_and_forgotten_with_their_grants(store, clock):
    ring = KeyRing(store, clock, identity=ISSUER, trusted=[PEER.peer])
    many = [Revocation(f"{n:032x}", 2_000 + n) for n in range(MAX_REVOCATIONS + 10)]
    ring.take_revocations(PEER.peer, many)
    assert len(ring.table.rules.revoked) == MAX_REVOCATIONS
    # The revocations of the grants that expire first were dropped.
    assert many[9].grant not in ring.table.rules.revoked
    await ring.save()
    clock.now = 2_000.0 + MAX_REVOCATIONS
    ring.take_revocations(PEER.peer, [Revocation("f" * 32, 10**9)])
    await ring.save()
    assert len(await store.read(Space.REVOKED)) <= 11


async def test_no_revocation_is_lost_while_the_store_is_away(store, clock):
    ring = KeyRing(store, clock, identity=ISSUER, trusted=[PEER.peer])
    store.broken = True
    ring.take_revocations(PEER.peer, [Revocation("0f" * 16, 10**9)])
    await ring.sync()
    store.broken = False
    await ring.sync()
    assert "0f" * 16 in await store.read(Space.REVOKED)


async def test_keys_that_ended_long_ago_are_forgotten_but_grants_only_when_they_expire(
    issuing, store, clock
):
    await issuing.create(ANN)
    await issuing.grant("bob", terms(clock, days=60))
    await issuing.revoke("ann")
    await issuing.revoke("bob")
    clock.now += KEPT_SECONDS + 1
    await issuing.create({"eve": Allowance()})
    assert [key.name for key in issuing.keys] == ["bob", "eve"]
    assert sorted(await store.read(Space.KEYS)) == ["bob", "eve"]
