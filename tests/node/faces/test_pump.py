"""Streams that are passed on without waking their task: callers see no difference."""

import asyncio

import pytest

from node.faces.pump import PER_TURN, Pump, PumpQueue
from node.faces.response_writer import ResponseWriter
from node.lane.request import LaneRequest, read_head
from router.answer import Flow
from router.errors import AnswerBroken
from tests.node.faces.assembly import until
from tests.node.faces.caller_line import CallerLine

URL = "/v1/chat/completions"
STREAM = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "a b c"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


class Script(Flow):
    """Flow whose pieces the test provides."""

    def __init__(self) -> None:
        self.listener = None
        self.pieces: list[bytes] = []

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration

    def read_nowait(self) -> tuple[bytes, bool]:
        pieces, self.pieces = self.pieces, []
        return b"".join(pieces), self.over

    over = False
    can_run_inline = False

    def inspect(self, cut_through) -> None:
        pass

    def listen(self, listener, cut_through=None) -> None:
        self.listener = listener

    def say(self, piece: bytes, *, last: bool = False) -> None:
        self.pieces.append(piece)
        self.over = last
        if self.listener:
            self.listener()


class Tap:
    """Tap that runs a function of the test on each piece."""

    def __init__(self, take=bytes) -> None:
        self.take = take

    def inspect(self, cut_through) -> None:
        pass


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def begun(line: CallerLine) -> ResponseWriter:
    head = read_head(HEAD)
    assert head is not None
    out = ResponseWriter(LaneRequest(head, HEAD, None, line), patience=30)
    await out.begin(200, {"content-type": "text/event-stream"})
    return out


async def test_pieces_of_one_turn_of_the_event_loop_are_sent_as_one() -> None:
    flow, line = Script(), CallerLine(b"HEAD")
    out = await begun(line)
    task = asyncio.ensure_future(Pump(flow, Tap(bytes.upper), out, PumpQueue()).run())
    await asyncio.sleep(0)
    flow.say(b"a")
    flow.say(b"b")
    await until(lambda: line.sent)
    flow.say(b"c")
    await until(lambda: len(line.sent) == 2)
    assert not task.done()
    flow.say(b"d", last=True)
    await task
    assert line.sent == [b"HEAD" + chunk(b"AB"), chunk(b"C"), chunk(b"D")]
    assert (out.sent, flow.listener) == (4, None)


async def test_pieces_of_a_prompt_flow_are_sent_at_once() -> None:
    flow, line = Script(), CallerLine(b"HEAD")
    flow.can_run_inline = True
    out = await begun(line)
    task = asyncio.ensure_future(Pump(flow, Tap(bytes.upper), out, PumpQueue()).run())
    await asyncio.sleep(0)
    flow.say(b"a")
    assert line.sent == [b"HEAD" + chunk(b"A")]
    flow.say(b"b", last=True)
    assert line.sent[1:] == [chunk(b"B")]
    await task
    assert flow.listener is None


async def test_a_slow_caller_pauses_the_pump_until_all_is_read() -> None:
    flow, line = Script(), CallerLine(b"HEAD")
    out = await begun(line)
    task = asyncio.ensure_future(Pump(flow, Tap(), out, PumpQueue()).run())
    await asyncio.sleep(0)
    flow.say(b"a")
    await until(lambda: line.sent)
    line.unread = 1
    flow.say(b"b")
    await until(lambda: len(line.sent) == 2)
    # The pump takes no more pieces, and does not listen for any.
    assert flow.listener is None
    flow.pieces.append(b"c")
    await asyncio.sleep(0)
    assert flow.pieces == [b"c"]
    line.unread = 0
    line.read.set()
    await until(lambda: len(line.sent) == 3)
    flow.say(b"", last=True)
    await task
    assert line.sent == [b"HEAD" + chunk(b"a"), chunk(b"b"), chunk(b"c")]


async def test_an_error_of_the_tap_is_raised_by_the_task() -> None:
    def broken(_: bytes) -> bytes:
        raise AnswerBroken("no")

    flow = Script()
    out = await begun(CallerLine(b"HEAD"))
    task = asyncio.ensure_future(Pump(flow, Tap(broken), out, PumpQueue()).run())
    await asyncio.sleep(0)
    flow.say(b"a")
    with pytest.raises(AnswerBroken):
        await task
    assert flow.listener is None


async def test_a_cancelled_task_takes_no_more_pieces() -> None:
    flow, line = Script(), CallerLine(b"HEAD")
    task = asyncio.ensure_future(Pump(flow, Tap(), await begun(line), PumpQueue()).run())
    await asyncio.sleep(0)
    flow.say(b"a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (line.sent, flow.listener) == ([], None)


@pytest.mark.parametrize("faults", [{}, {"die_after": 2}, {"fails_after": 2}, {"no_done": True}])
@pytest.mark.parametrize("goes_on", ["0", "1"])
async def test_streams_are_the_same_through_the_lane_and_through_aiohttp(
    served, worker, faults, goes_on
) -> None:
    bodies = []
    for beside in ({}, {"Connection": "close"}):
        worker.fail(delay_between=0.02, **faults)
        headers = {"x-modelvine-continue": goes_on, **beside}
        async with served.http.post(URL, json=STREAM, headers=headers) as response:
            assert response.status == 200
            bodies.append(await response.read())
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith(b"\n\n")


async def test_a_worker_sees_a_caller_leave_in_the_middle(served, worker) -> None:
    worker.fail(stall_after=1)
    async with served.http.post(URL, json=STREAM) as response:
        assert await response.content.readany()
        response.close()
    await until(lambda: worker.hung_up == 1)
    await until(lambda: not served.context.router.in_flight)


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

    errors = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    queue = PumpQueue()
    served: list[int] = []
    queue.add(failing)
    for number in range(PER_TURN):
        queue.add(lambda number=number: served.append(number))
    await turns(3)
    assert served == [*range(PER_TURN)]
    with pytest.raises(ValueError, match="a defect"):
        raise errors[0]


async def test_a_bounded_number_pass_at_once_while_the_queue_is_empty() -> None:
    queue = PumpQueue()
    assert [queue.may_skip() for _ in range(PER_TURN + 1)] == [True] * PER_TURN + [False]
    queue.add(lambda: None)
    assert not queue.may_skip()
    await turns(1)
    assert queue.may_skip()
