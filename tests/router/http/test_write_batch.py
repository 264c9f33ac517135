"""Laws of writes that are batched per turn of the event loop."""

import asyncio

from router.http.write_batch import WriteBatch


class Said:
    """A pending write, which may fail."""

    def __init__(self, name: str, sent: list[str], *, fails: bool = False) -> None:
        self.name, self.said, self.fails = name, sent, fails

    def flush(self) -> None:
        if self.fails:
            raise RuntimeError(self.name)
        self.said.append(self.name)


async def test_all_writes_are_sent_in_order_at_the_end_of_the_turn() -> None:
    batch, sent = WriteBatch(), []
    for name in "abc":
        batch.add(Said(name, sent))
    assert sent == []
    await asyncio.sleep(0)
    assert sent == ["a", "b", "c"]
    batch.add(Said("d", sent))
    await asyncio.sleep(0)
    assert sent[-1] == "d"


async def test_a_failing_write_does_not_hold_back_others() -> None:
    batch, sent, failed = WriteBatch(), [], []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failed.append(str(context["exception"]))
    )
    for name in "abcd":
        batch.add(Said(name, sent, fails=name in "bc"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert (sent, failed) == (["a", "d"], ["b", "c"])


async def test_a_write_added_during_the_flush_waits_for_the_next_turn() -> None:
    batch, sent = WriteBatch(), []

    class Adds(Said):
        def flush(self) -> None:
            super().flush()
            batch.add(Said("later", sent))

    batch.add(Adds("now", sent))
    await asyncio.sleep(0)
    assert sent == ["now"]
    await asyncio.sleep(0)
    assert sent == ["now", "later"]
