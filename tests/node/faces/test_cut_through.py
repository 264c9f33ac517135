"""Streams that are cut through pass as all others do: callers, and all code that watches the stream, see the same."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.access_log import Account
from node.faces.pump import Pump, PumpQueue
from node.faces.response_writer import ResponseWriter
from node.faces.stream_tap import StreamTap
from node.lane.request import LaneRequest, read_head
from registry.records import PeerId, Service
from router.answer import Route
from router.attempt import Routed
from router.errors import AnswerBroken
from router.failover_recording import Recording
from router.failover_stream import RECORDED_SIGNS, ContinuedFlow, ContinuedRest, FirstPart
from router.http.connection import Connection
from router.http.cut_through import SHOWN_TOGETHER
from router.http.exchange import Exchange
from router.http.timers import Timers
from router.requests import Kind
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.state.in_flight import Tally
from tests.node.faces.caller_line import CallerLine
from tests.router.http.dictated import HEAD, Pool, Wire

CALL = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
BEGINS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST, EVENT = b'data: {"choices":[]}\n\n', b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n'
PLAIN = EVENT % b"a"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
FAILS = b'data: {"error":{"message":"no"}}\n\n'
DONE = b"data: [DONE]\n\n"
CANDIDATE = Candidate(PeerId("here"), Service("p", "m"))


async def nobody(routed, broken) -> AsyncIterator[bytes]:
    """Raise the error of a worker that broke off: no other worker goes on."""
    raise broken
    yield b""


class Stream:
    """One stream from a worker to its caller."""

    def __init__(self, *, cuts: bool, continues: bool, hides: bool = False) -> None:
        self.caller, self.tally, self.recording = CallerLine(), Tally(), Recording(RECORDED_SIGNS)
        self.connection = Connection(Pool())
        self.connection.connection_made(Wire())
        self.reply = self.connection.begin(HEAD, b"")
        self.bring(BEGINS, chunk(FIRST))
        loop = asyncio.get_running_loop()
        exchange = Exchange(self.reply, RouterSettings(), loop.time() + 60, Timers())
        answer = exchange.answer(self.reply.read_nowait(), Route.LOCAL)
        answer.hides_usage = hides
        routed = Routed(answer, CANDIDATE, 1, self.tally)
        account = Account("r", Kind.CHAT, 0.0)
        flow = answer.rest
        if continues:
            part = FirstPart(routed, self.recording, lambda *_: None)
            flow = ContinuedFlow(ContinuedRest(part, nobody), flow)
            answer.first, answer.rest, answer.hides_usage = b"", flow, False
            routed = Routed(answer, CANDIDATE, 1, None)
        self.tap = StreamTap(routed, account)
        self.tokens = part._tokens if continues else self.tap._tokens
        call = LaneRequest(read_head(CALL), CALL, None, self.caller)
        self.out, self.cuts = ResponseWriter(call, patience=30), cuts
        self.exchange, self.answer, self.flow = exchange, answer, flow

    def bring(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    async def begin(self) -> None:
        await self.out.begin(200, {"content-type": "text/event-stream"})
        await self.out.send(self.tap.take_first(self.answer.first))
        self.pump = asyncio.ensure_future(Pump(self.flow, self.tap, self.out, PumpQueue()).run())
        await settled()
        if not self.cuts:
            # This sign is in all bytes, so nothing is cut through.
            self.reply.cut_through.look_for(b"")

    async def seen(self) -> dict[str, object]:
        """Return what the caller got, and what the node saw of the stream."""
        broke = False
        try:
            await asyncio.wait_for(self.pump, 5)
            async for piece in self.flow:
                await self.out.send(self.tap.take(piece))
        except AnswerBroken:
            broke = True
        await self.out.end(self.tap.finish())
        self.exchange.close()
        usage = self.tokens.usage()
        return {
            "body": unchunked(b"".join(self.caller.sent)),
            "sent": self.out.sent,
            "lacking": self.tap.missing_end,
            "recorded": self.recording.read_all(),
            "told": usage if not usage.estimated else None,
            "broke": broke,
        }


def chunk(data: bytes, form: str = "%x") -> bytes:
    return (form % len(data)).encode() + b"\r\n" + data + b"\r\n"


def unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def passed(reads: Sequence[bytes], **how: bool) -> dict[str, object]:
    stream = Stream(**how)
    await stream.begin()
    for data in reads:
        stream.bring(data)
        await settled()
    stream.connection.connection_lost(None)
    return await stream.seen()


TEXTS = st.sampled_from([b"a", b"bc", b"", b"error", b'\\"error', b"prompt_tokens", b"\0", b"x\ny"])
OTHER = st.sampled_from(
    [USAGE, FAILS, DONE, b": c\n\n", b"data: x\r\n\r\n", b"data: y\r\r", PLAIN[:-1], b"\n", b"0\r\n\r\n"]
)  # fmt: skip
# Most events are alike.
EVENTS = st.one_of(*[TEXTS.map(lambda text: EVENT % text)] * 3, OTHER)
CHUNKS = st.tuples(
    st.lists(EVENTS, min_size=1, max_size=3), st.sampled_from(["%x", "%X", "%04x", "%x;a=b", "%x "])
)


@given(
    st.lists(CHUNKS, max_size=12),
    st.lists(st.integers(0, 400), max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_stream_passes_the_same_with_and_without_cut_through(
    chunks, cuts, ends, continues, hides
) -> None:
    reads = [chunk(b"".join(events), form) for events, form in chunks]
    reads += [b"0\r\n\r\n"] * ends
    # Some reads end in the middle of a chunk, whose rest comes with the next read.
    for cut in cuts:
        if reads and len(reads[index := cut % len(reads)]) > 1:
            split = 1 + cut % (len(reads[index]) - 1)
            later = reads[index][split:] + (
                reads.pop(index + 1) if cut % 2 and index + 1 < len(reads) else b""
            )
            reads[index : index + 1] = [reads[index][:split], later]
    seen = [
        asyncio.run(passed(reads, cuts=c, continues=continues, hides=hides)) for c in (True, False)
    ]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("continues", [True, False])
async def test_plain_events_are_cut_through_as_they_came_and_are_counted(continues) -> None:
    stream = Stream(cuts=True, continues=continues)
    await stream.begin()
    count = stream.tally.events
    # If it were written anew, its size would have lower-case letters.
    chunked = chunk(PLAIN, "%X")
    assert chunked != chunk(PLAIN)
    stream.bring(*[chunked] * SHOWN_TOGETHER)
    assert stream.caller.sent[-SHOWN_TOGETHER:] == [chunked] * SHOWN_TOGETHER
    assert stream.reply.buffered == 0
    assert stream.tally.events == count + SHOWN_TOGETHER
    stream.bring(b"0\r\n\r\n")
    assert (await stream.seen())["broke"] is False


def of_llama_cpp(text: bytes, reason: bytes, second: int) -> bytes:
    return b'data: {"choices":[{"text":"%b","finish_reason":%b}],"created":%d,"id":"a"}\n\n' % (
        text,
        reason,
        second,
    )


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("reason", [b'"stop"', b'"length"'])
async def test_a_last_event_is_seen_even_if_it_looks_like_those_before(cuts, reason) -> None:
    # What differs goes from the text to the second, and so includes the finish reason.
    sent = [of_llama_cpp(b"%d" % second, b"null", second) for second in range(1, 9)]
    sent.append(of_llama_cpp(b"", reason, 9))
    seen = await passed([chunk(event) for event in (*sent, b"")], cuts=cuts, continues=True)
    assert (seen["broke"], seen["lacking"], seen["recorded"]) == (
        False,
        DONE,
        b"".join((FIRST, *sent)),
    )


BESIDE = [
    chunk(USAGE),
    chunk(FAILS),
    chunk(PLAIN[:-1]),
    chunk(PLAIN) + chunk(PLAIN),
    chunk(PLAIN, "%x;a=b"),
    chunk(PLAIN, "0%x"),
    chunk(PLAIN)[:-1],
    chunk(PLAIN) + b"1",
    b"0\r\n\r\n",
    chunk(b"a" * 4096 + b"\n\n"),
    b"1" + chunk(PLAIN),
    b"2\r\n\n\n\n\r\n",
]


@pytest.mark.parametrize("data", BESIDE)
async def test_anything_but_one_plain_chunk_takes_the_ordinary_path(data) -> None:
    stream = Stream(cuts=True, continues=True)
    await stream.begin()
    cut_through = stream.reply.cut_through
    assert cut_through is not None
    assert not cut_through.try_pass(data)
    stream.pump.cancel()
    await asyncio.gather(stream.pump, return_exceptions=True)
    assert stream.reply.cut_through is None
    assert not cut_through.try_pass(chunk(PLAIN))


LOOKS_LIKE_ONE = chunk(b"data: 0123456" + b"\n\n")
READS = {
    "half an event": (chunk(PLAIN[:9]), chunk(PLAIN), chunk(PLAIN[9:]), chunk(PLAIN)),
    "half a size": (chunk(PLAIN) + b"1", LOOKS_LIKE_ONE, b"a" * 12 + b"\n\n\r\n"),
    "a size alone": (b"23\r\n", LOOKS_LIKE_ONE, b"a" * 13 + b"\n\n\r\n"),
    "a size that is split": (b"2f\r", b"\n" + PLAIN + b"\r\n"),
    "an end that is split": (chunk(PLAIN)[:-1], b"\n", chunk(PLAIN)),
    "a line feed alone": (chunk(b"\n"), chunk(PLAIN)),
    "several at once": (3 * chunk(PLAIN), chunk(PLAIN)),
    "an end with trailers": (chunk(PLAIN), b"0\r\nA: b\r\n\r\n"),
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
@pytest.mark.parametrize("continues", [True, False])
async def test_a_stream_passes_the_same_wherever_its_reads_end(reads, continues) -> None:
    seen = [await passed(reads, cuts=cuts, continues=continues) for cuts in (True, False)]
    assert seen[0] == seen[1]


async def test_nothing_is_cut_through_to_a_slow_or_closed_caller() -> None:
    stream = Stream(cuts=True, continues=False)
    await stream.begin()
    cut_through, caller = stream.reply.cut_through, stream.caller
    assert cut_through is not None
    caller.unread = 1
    assert not cut_through.try_pass(chunk(PLAIN))
    caller.unread, caller.closed = 0, True
    assert not cut_through.try_pass(chunk(PLAIN))
    caller.closed = False
    assert cut_through.try_pass(chunk(PLAIN))
    stream.connection.connection_lost(None)
    assert (await stream.seen())["broke"]
