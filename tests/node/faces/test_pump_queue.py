"""Queue of streams that are ready to be passed on: they take turns, and other tasks run between."""

import asyncio

import pytest

from node.faces.pump_queue import PER_TURN, PumpQueue


async def turns(count: int) -> None:
    """Let the event loop run `count` turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_turn_of_the_event_loop_serves_a_bounded_number_in_order() -> None:
    queue = PumpQueue()
    served: list[int] = []
    for number in range(2 * PER_TURN + 1):
        queue.add(lambda number=number: served.append(number))
    assert not served
    for expected in (PER_TURN, 2 * PER_TURN, 2 * PER_TURN + 1):
        await turns(1)
        assert served == [*range(expected)]


async def test_a_stream_added_during_a_turn_goes_to_the_end() -> None:
    queue = PumpQueue()
    served: list[str] = []
    queue.add(lambda: queue.add(lambda: served.append("second")))
    queue.add(lambda: served.append("first"))
    await turns(2)
    assert served == ["first", "second"]
    queue.add(lambda: served.append("third"))
    await turns(1)
    assert served[2:] == ["third"]


async def test_a_stream_that_fails_does_not_stop_the_others() -> None:
    def failing() -> None:
        raise ValueError("a defect")

    said = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
    queue = PumpQueue()
    served: list[int] = []
    queue.add(failing)
    for number in range(PER_TURN):
        queue.add(lambda number=number: served.append(number))
    await turns(3)
    assert served == [*range(PER_TURN)]
    with pytest.raises(ValueError, match="a defect"):
        raise said[0]


async def test_a_bounded_number_pass_at_once_while_the_queue_is_empty() -> None:
    queue = PumpQueue()
    assert [queue.at_once() for _ in range(PER_TURN + 1)] == [True] * PER_TURN + [False]
    queue.add(lambda: None)
    assert not queue.at_once()
    await turns(1)
    assert queue.at_once()
