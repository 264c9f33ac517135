"""Comparison of two nodes' receipts: faults of a chain are named, sums agree to the token, a difference names its request."""

from dataclasses import replace

from node.auth.receipt_comparison import compare, faults
from node.auth.receipts import PAGE_SECONDS, Side
from router.openai.usage import Usage
from tests.node.auth.test_receipts import HERE, THERE, clock, here, there

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
    own = {"node": HERE.peer, "peer": THERE.peer}
    assert faults(pages, **own) == []
    assert faults([pages[0], changed, *pages[2:]], **own) == ["page 2 was changed"]
    resealed = changed.model_copy(update={"hash": changed.digest()})
    assert faults([pages[0], resealed, *pages[2:]], **own) == [
        "page 2 is not signed by its node",
        "page 3 does not follow the previous one",
    ]
    assert faults([pages[0], *pages[2:]], **own) == ["1 pages before 3 are missing"]
    assert faults(await there.chain(HERE), **own)[0] == "page 1 is of other nodes"


async def test_two_nodes_agree_to_the_token(here, there):
    for n in range(5):
        here.add(Side.ASKED, THERE, f"r{n}", Usage(n, 2))
        there.add(Side.SERVED, HERE, f"r{n}", Usage(n, 2))
    # The serving node was not told the tokens of this answer.
    here.add(Side.SERVED, THERE, "image", None)
    there.add(Side.ASKED, HERE, "image", Usage(0, 9))
    found = compare(await here.chain(THERE), await there.chain(HERE))
    assert (found.answers, found.tokens) == (6, 10 + 10)
    assert (found.differ, found.only_here, found.only_there) == ((), (), ())


async def test_a_difference_is_named_with_its_request(here, there):
    here.add(Side.ASKED, THERE, "dear", Usage(5, 10))
    there.add(Side.SERVED, HERE, "dear", Usage(5, 100))
    # A continued stream may have asked one node twice.
    for _ in range(2):
        here.add(Side.ASKED, THERE, "twice", Usage(5, 10))
    there.add(Side.SERVED, HERE, "twice", Usage(5, 10))
    here.add(Side.ASKED, THERE, "lost there")
    there.add(Side.ASKED, HERE, "lost here")
    found = compare(await here.chain(THERE), await there.chain(HERE))
    assert [(one.request, one.here, one.there) for one in found.differ] == [
        ("dear", (5, 10), (5, 100)),
        ("twice", (10, 20), (5, 10)),
    ]
    assert (found.only_here, found.only_there) == (("lost there",), ("lost here",))
