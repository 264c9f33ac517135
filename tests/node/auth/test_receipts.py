"""Receipts: chains of signed pages, and the comparison of two nodes' chains."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from node.auth.books import ReceiptBook
from node.auth.receipts import (
    MAX_PAGES,
    PAGE_ROWS,
    PAGE_SECONDS,
    Page,
    ReceiptLog,
    Side,
    compare,
    faults,
    read,
)
from registry.errors import StoreUnavailable
from registry.store import Put, Space
from router.openai.usage import Usage
from tests.failing_store import FailingStore
from tests.strategies import IDENTITIES

HERE, THERE, OTHER = IDENTITIES[:3]
DAYS = 35
TOLD = Usage(3, 4)


names = st.text(st.characters(codec="utf-8"), max_size=120)


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


class SlowStore(FailingStore):
    """Store whose writes can be made to wait."""

    waiting = None

    async def write(self, *changes):
        if self.waiting is not None:
            await self.waiting.wait()
        await super().write(*changes)


class Site:
    """One node with its receipts."""

    def __init__(self, identity, clock):
        self.identity, self.clock, self.store = identity, clock, SlowStore()
        self.start()

    def start(self):
        self.book = ReceiptBook(self.clock)
        self.log = ReceiptLog(self.book, self.store, self.identity, self.clock, days=DAYS)

    def add(self, side, peer, request="r", usage=TOLD):
        self.book.add(side, peer.peer, request, "llama", usage, 0.5)

    async def chain(self, peer):
        return await self.log.pages(peer.peer)

    async def sound(self, peer):
        return faults(await self.chain(peer), node=self.identity.peer, peer=peer.peer) == []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def here(clock):
    return Site(HERE, clock)


@pytest.fixture
def there(clock):
    return Site(THERE, clock)


async def test_a_page_grows_and_is_signed_each_time(here, clock):
    here.add(Side.ASKED, THERE, "a")
    [first] = await here.chain(THERE)
    clock.now += 1
    here.add(Side.SERVED, THERE, "b", None)
    [second] = await here.chain(THERE)
    assert [row.request for row in second.rows] == ["a", "b"]
    assert (second.rows[0].tokens, second.rows[1].tokens) == (7, 0)
    assert second.hash != first.hash
    assert await here.sound(THERE)
    assert len(await here.store.read(Space.RECEIPTS)) == 1


async def test_a_page_that_is_full_or_old_is_followed_by_another(here, clock):
    for n in range(PAGE_ROWS + 1):
        here.add(Side.ASKED, THERE, f"r{n}")
    await here.log.write()
    clock.now += PAGE_SECONDS
    here.add(Side.ASKED, THERE, "late")
    pages = await here.chain(THERE)
    assert [len(page.rows) for page in pages] == [PAGE_ROWS, 1, 1]
    assert [page.before for page in pages[1:]] == [page.hash for page in pages[:-1]]
    assert await here.sound(THERE)


async def test_receipts_that_waited_long_for_the_store_fill_pages_as_usual(here, clock):
    for n in range(PAGE_ROWS + 2):
        here.add(Side.ASKED, THERE, f"r{n}")
    clock.now += 10 * PAGE_SECONDS
    pages = await here.chain(THERE)
    assert [len(page.rows) for page in pages] == [PAGE_ROWS, 2]
    assert await here.sound(THERE)


async def test_estimated_tokens_are_not_written_into_a_receipt(here):
    here.add(Side.SERVED, THERE, "a", Usage(0, 7, estimated=True))
    [page] = await here.chain(THERE)
    assert (page.rows[0].prompt, page.rows[0].completion) == (None, None)


@given(names, names, st.none() | st.integers(0, 2**53 - 1))
async def test_a_page_is_written_as_its_readers_hash_it(request, model, tokens):
    here = Site(HERE, Clock())
    usage = None if tokens is None else Usage(tokens, tokens)
    here.book.add(Side.SERVED, THERE.peer, request, model, usage, 0.5)
    [page] = await here.chain(THERE)
    assert (page.hash, page.rows[0].request) == (page.digest(), request[:100])
    assert await here.sound(THERE)


async def test_the_chain_goes_on_after_a_restart(here, clock):
    here.add(Side.ASKED, THERE, "a")
    await here.log.close()
    here.start()
    await here.log.restore()
    here.add(Side.ASKED, THERE, "b")
    pages = await here.chain(THERE)
    assert [[row.request for row in page.rows] for page in pages] == [["a"], ["b"]]
    assert await here.sound(THERE)


async def test_each_peer_has_a_chain_of_its_own(here):
    here.add(Side.ASKED, THERE, "a")
    here.add(Side.SERVED, OTHER, "b", Usage(1, 1))
    assert [len(await here.chain(peer)) for peer in (THERE, OTHER)] == [1, 1]
    assert await here.log.totals() == {
        THERE.peer: {Side.ASKED: (1, 7)},
        OTHER.peer: {Side.SERVED: (1, 2)},
    }


async def test_receipts_that_could_not_be_written_are_written_with_the_next_ones(here):
    here.add(Side.ASKED, THERE, "a")
    await here.log.write()
    here.store.broken = True
    here.add(Side.ASKED, THERE, "b")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await here.log.write()
    here.store.broken = False
    here.add(Side.ASKED, THERE, "c")
    [page] = await here.chain(THERE)
    assert [row.request for row in page.rows] == ["a", "b", "c"]
    assert await here.sound(THERE)


async def test_a_write_that_is_cancelled_at_the_end_is_made_again(here):
    here.store.waiting = asyncio.Event()
    here.add(Side.ASKED, THERE, "a")
    writing = asyncio.ensure_future(here.log.write())
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    here.store.waiting = None
    await here.log.close()
    [page] = await here.chain(THERE)
    assert [row.request for row in page.rows] == ["a"]


async def test_the_oldest_pages_go_and_the_rest_is_still_a_chain(here, clock):
    for _ in range(MAX_PAGES + 5):
        clock.now += PAGE_SECONDS
        here.add(Side.ASKED, THERE)
        await here.log.write()
    pages = await here.chain(THERE)
    assert (len(pages), pages[0].number) == (MAX_PAGES, 6)
    assert await here.sound(THERE)
    clock.now += DAYS * 86_400 + 1
    here.add(Side.ASKED, THERE)
    assert len(await here.chain(THERE)) == 1


async def test_rows_that_no_version_wrote_are_left_out(here):
    here.add(Side.ASKED, THERE, "a")
    await here.log.write()
    await here.store.write(Put(Space.RECEIPTS, "junk", b"{"), Put(Space.RECEIPTS, "x:1", b"{}"))
    here.start()
    await here.log.restore()
    assert len(await here.chain(THERE)) == 1


@pytest.mark.parametrize("said", [None, {}, "x", [{}], [{"node": 1}], [[]]])
def test_pages_from_another_node_are_validated(said):
    with pytest.raises(ValidationError):
        read(said)


def test_a_page_has_no_more_rows_than_stated():
    page = {"node": "n", "peer": "p", "number": 1, "before": "0" * 64}
    row = {"at": 1, "request": "r", "side": "asked", "model": "m"}
    assert len(read([{**page, "rows": [row] * PAGE_ROWS}])[0].rows) == PAGE_ROWS
    with pytest.raises(ValidationError):
        Page.model_validate({**page, "rows": [row] * (PAGE_ROWS + 1)})


__all__ = ["clock", "here", "there"]


async def test_a_changed_a_missing_and_a_foreign_page_are_named(here, there, clock):
    for n in range(4):
        clock.now += PAGE_SECONDS
        for site, peer in ((here, THERE), (there, HERE)):
            site.add(Side.ASKED, peer, f"r{n}")
            await site.log.write()
    pages = [*await here.chain(THERE)]
    row = replace(pages[1].rows[0], completion=40)
    changed = pages[1].model_copy(update={"rows": (row,)})
    parties = {"node": HERE.peer, "peer": THERE.peer}
    assert faults(pages, **parties) == []
    assert faults([pages[0], changed, *pages[2:]], **parties) == ["page 2 was changed"]
    resealed = changed.model_copy(update={"hash": changed.digest()})
    assert faults([pages[0], resealed, *pages[2:]], **parties) == [
        "page 2 is not signed by its node",
        "page 3 does not follow the previous one",
    ]
    assert faults([pages[0], *pages[2:]], **parties) == ["1 pages before 3 are missing"]
    assert faults(await there.chain(HERE), **parties)[0] == "page 1 is of other nodes"


async def test_two_nodes_agree_to_the_token(here, there):
    for n in range(5):
        here.add(Side.ASKED, THERE, f"r{n}", Usage(n, 2))
        there.add(Side.SERVED, HERE, f"r{n}", Usage(n, 2))
    # The serving node was not told the tokens of this answer.
    here.add(Side.SERVED, THERE, "image", None)
    there.add(Side.ASKED, HERE, "image", Usage(0, 9))
    comparison = compare(await here.chain(THERE), await there.chain(HERE))
    assert (comparison.answers, comparison.tokens) == (6, 10 + 10)
    assert (comparison.differ, comparison.only_here, comparison.only_there) == ((), (), ())


async def test_a_difference_is_named_with_its_request(here, there):
    here.add(Side.ASKED, THERE, "dear", Usage(5, 10))
    there.add(Side.SERVED, HERE, "dear", Usage(5, 100))
    # A continued stream may have asked one node twice.
    for _ in range(2):
        here.add(Side.ASKED, THERE, "twice", Usage(5, 10))
    there.add(Side.SERVED, HERE, "twice", Usage(5, 10))
    here.add(Side.ASKED, THERE, "lost there")
    there.add(Side.ASKED, HERE, "lost here")
    comparison = compare(await here.chain(THERE), await there.chain(HERE))
    assert [
        (difference.request, difference.here, difference.there) for difference in comparison.differ
    ] == [
        ("dear", (5, 10), (5, 100)),
        ("twice", (10, 20), (5, 10)),
    ]
    assert (comparison.only_here, comparison.only_there) == (("lost there",), ("lost here",))
