"""Which peers are kept connected: changes of the list outlive a restart and override the configuration."""

import pytest

from node.peers.bootstrap import MAX_ADDRESSES, Bootstrap, peer_at
from registry.errors import LimitReached, StoreUnavailable
from registry.persistence import Persistence
from registry.signing import Identity
from registry.store import Put, Space
from registry.store.memory import MemoryStore

PEER = Identity(bytes(32)).peer
CONFIGURED = f"/ip4/192.0.2.1/tcp/6101/p2p/{PEER}"
ADDED = f"/dns4/vine.example/tcp/6101/p2p/{PEER}"


class Kept:
    """Stand-in for the mesh that remembers which addresses it was last told to keep."""

    def __init__(self):
        self.addresses = None

    def set_bootstrap(self, addresses):
        self.addresses = addresses


@pytest.fixture
def store():
    return MemoryStore()


async def restarted(store, kept):
    saving = Persistence(store, Put(Space.SELF, "epoch", b"1"))
    bootstrap = Bootstrap(store, saving, kept, configured=[CONFIGURED])
    await bootstrap.restore()
    return bootstrap


async def test_a_configured_address_is_kept_from_the_start(store):
    kept = Kept()
    await restarted(store, kept)
    assert kept.addresses == (CONFIGURED,)


async def test_an_added_address_is_kept_at_once_and_after_a_restart(store):
    kept = Kept()
    await (await restarted(store, kept)).add(ADDED)
    assert kept.addresses == (CONFIGURED, ADDED)
    assert (await restarted(store, Kept())).addresses == (CONFIGURED, ADDED)


async def test_a_removed_address_stays_away_even_when_it_is_configured(store):
    kept = Kept()
    bootstrap = await restarted(store, kept)
    assert await bootstrap.remove(CONFIGURED)
    assert kept.addresses == ()
    bootstrap = await restarted(store, kept)
    assert bootstrap.addresses == ()
    await bootstrap.add(CONFIGURED)
    assert (await restarted(store, Kept())).addresses == (CONFIGURED,)


async def test_removing_an_address_that_is_not_kept_changes_nothing(store):
    kept = Kept()
    assert not await (await restarted(store, kept)).remove(ADDED)
    assert kept.addresses == (CONFIGURED,)


async def test_an_address_that_cannot_be_saved_is_not_kept(store):
    kept = Kept()
    bootstrap = await restarted(store, kept)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await bootstrap.add(ADDED)
    assert bootstrap.addresses == kept.addresses == (CONFIGURED,)


async def test_the_number_of_kept_addresses_is_limited(store):
    bootstrap = await restarted(store, Kept())
    for port in range(1, MAX_ADDRESSES + 1):
        await bootstrap.add(f"/ip4/192.0.2.1/tcp/{port}/p2p/{PEER}")
    with pytest.raises(LimitReached):
        await bootstrap.add(ADDED)


@pytest.mark.parametrize(
    "address",
    [CONFIGURED, ADDED, f"/ip6/::1/tcp/1/p2p/{PEER}", f"{CONFIGURED}/p2p-circuit/p2p/{PEER}"],
)
def test_an_address_ends_in_the_peer_that_answers_there(address):
    assert peer_at(address) == PEER


@pytest.mark.parametrize("address", ["", "/p2p/" + PEER, "/ip4/1.2.3.4/tcp/1", "/x/p2p/" + PEER])
def test_an_invalid_address_is_refused_with_a_sentence(address):
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        peer_at(address)
