"""Tap on a passing event stream: reassembles whole events, counts tokens and detects the end."""

import re

from node.faces.access_log import Account
from router.attempt import Routed
from router.http.cut_through import CutThrough
from router.openai.event_texts import contains
from router.openai.sse import EVENT_ENDS, WholeEvents, has_line
from router.openai.text_writer import DONE
from router.openai.usage import TEXT, StreamUsage

LAST_PIECES = 4
_LAST_BYTES = 16 * 1024
_REASON = re.compile(rb'"finish_reason" ?: ?"')


class StreamEnd:
    """Detector of text streams that lack only their `[DONE]`, which some workers leave out. It sees whole events."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: list[bytes] = []

    def observe(self, events: bytes) -> bytes:
        """Take in passing events, and return them."""
        if events:
            self.observe_pieces([events if len(events) <= _LAST_BYTES else events[-_LAST_BYTES:]])
        return events

    def observe_pieces(self, pieces: list[bytes]) -> None:
        """Take in small pieces, in a list that the caller never changes afterwards."""
        self._last = pieces if len(pieces) == LAST_PIECES else [*self._last, *pieces][-LAST_PIECES:]

    @property
    def missing_end(self) -> bytes:
        """What a well-ended stream lacks: nothing where it sent `[DONE]` or an error, or never gave a finish reason."""
        last = b"".join(self._last)
        is_complete = has_line(last, b"[DONE]") or has_line(last, b'{"error"')
        if is_complete or not _REASON.search(last):
            return b""
        return DONE if last.endswith(EVENT_ENDS) else b"\n\n" + DONE


class StreamTap:
    """Tap on one event stream. Whole events come out, without the usage event that its caller did not ask for."""

    __slots__ = ("_account", "_answer", "_end", "_events", "_inspects", "_tally", "_tokens")

    def __init__(self, routed: Routed, account: Account) -> None:
        self._events = WholeEvents()
        self._end = StreamEnd()
        self._answer = routed.answer
        self._tally = routed.tally
        self._account = account
        # A node that asked for the usage removes it itself.
        hides = routed.answer.hides_usage and not account.keeps_usage
        # Usage that another node reports goes into a receipt.
        self._inspects = bool(routed.tally) or hides or not account.served
        self._tokens = StreamUsage(hidden=hides, usage_format=routed.answer.usage_format)
        account.streams_text = account.kind in TEXT
        if routed.tally and account.streams_text:
            account.tokens = self._tokens

    def take_first(self, chunk: bytes) -> bytes:
        """Take in the first bytes and return those that are ready to be passed on, possibly none."""
        if self._tally is not None:
            self._tokens.events += self._tally.count_first_bytes(chunk)
        return self._end.observe(self._tokens.inspect(self._events.feed(chunk)))

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return those that are ready to be passed on, possibly none."""
        self._count_events([chunk])
        is_whole = not self._events.held and chunk.endswith(EVENT_ENDS)
        ready = chunk if is_whole else self._events.feed(chunk)
        if self._inspects and contains(ready, self._tokens.sign):
            ready = self._tokens.inspect(ready)
        return self._end.observe(ready)

    def inspect(self, cut_through: CutThrough) -> None:
        """Register what this tap needs to see of the bytes that are cut through."""
        if self._inspects:
            cut_through.look_for(self._tokens.sign)
        if self._tally is not None:
            cut_through.observers.append(self._count_events)
        cut_through.observers.append(self._end.observe_pieces)
        cut_through.buffers.append(self._events)

    def finish(self) -> bytes:
        """Return what is left at the end, an event without its blank line or nothing, and record the usage of the answer."""
        remaining = self._tokens.inspect(self._events.rest) if self._events.held else b""
        if self._tally or not self._account.served:
            self._answer.usage = usage = self._tokens.usage()
            if not self._tally:
                self._account.record_reported_usage(usage)
        return self._end.observe(remaining) if remaining else b""

    def _count_events(self, chunks: list[bytes]) -> None:
        if self._tally is not None:
            self._tokens.events += self._tally.count_chunks(chunks)

    @property
    def missing_end(self) -> bytes:
        """What a well-ended text stream lacks: `[DONE]` at most."""
        return self._end.missing_end
