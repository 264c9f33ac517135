"""Tap on a stream as it passes: its events are made whole, and its tokens counted, once."""

import re
from collections import deque

from node.faces.access_log import Account
from node.faces.response_writer import EVENT_ENDS
from router.attempt import Routed
from router.openai.text_writer import DONE
from router.openai.usage import TEXT, Tokens

# An event up to this size is held until it is whole.
_LONGEST_EVENT = 1024 * 1024
_LONGEST_END = 4
_LAST_BYTES = 16 * 1024
_LAST_PIECES = 4
_DONE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
_FAILURE = re.compile(rb'^data: ?\{"error"', re.MULTILINE)
_REASON = re.compile(rb'"finish_reason" ?: ?"')


class Passage:
    """One event stream on its way through. Whole events come out, without the usage that its caller did not ask for."""

    __slots__ = ("_held", "_tally", "_tokens")

    def __init__(self, routed: Routed, account: Account) -> None:
        self._held = WholeEvents()
        self._tally = routed.tally
        self._tokens = Tokens(hidden=routed.answer.hides_usage, tells=routed.answer.tells)
        if routed.tally and account.kind in TEXT:
            account.tokens = self._tokens

    def first(self, chunk: bytes) -> bytes:
        """Take in the first bytes and return what is ready to be passed on, nothing perhaps."""
        return self._tokens.passing(self._held.take(chunk))

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return what is ready to be passed on, nothing perhaps."""
        ready = self._held.take(chunk)
        if self._tally:
            self._tokens.events += self._tally.streamed(chunk)
            ready = self._tokens.passing(ready)
        return ready

    def rest(self) -> bytes:
        """Return what is left at the end: an event without its blank line, or nothing."""
        return self._tokens.passing(self._held.rest)


class StreamEnd:
    """Whether a stream of texts, of which whole events pass, lacks only its `[DONE]`: some workers leave it out."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=_LAST_PIECES)

    def seen(self, events: bytes) -> bytes:
        """Take in what goes by, and return it."""
        if events:
            self._last.append(events[-_LAST_BYTES:])
        return events

    @property
    def lacking(self) -> bytes:
        """What a stream lacks that ended well: nothing where it said so, failed, or never said why it ends."""
        last = b"".join(self._last)
        if _DONE.search(last) or _FAILURE.search(last) or not _REASON.search(last):
            return b""
        return DONE if last.endswith(EVENT_ENDS) else b"\n\n" + DONE


class WholeEvents:
    """Holds back the beginning of an event until it is whole: half of one could not be followed by our error event."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        # It grows in place: joined anew for every chunk, an event of small chunks would be copied again and again.
        self._held = bytearray()

    @property
    def rest(self) -> bytes:
        """What is held back."""
        return bytes(self._held)

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return what is ready to be sent, nothing perhaps."""
        if not self._held and chunk.endswith(EVENT_ENDS):
            return chunk
        # What is held has no end in it, but may have the beginning of one.
        before = bytes(self._held[-_LONGEST_END:])
        looked = before + chunk
        end = max(looked.rfind(mark) + len(mark) if mark in looked else 0 for mark in EVENT_ENDS)
        if end == 0 and len(self._held) + len(chunk) < _LONGEST_EVENT:
            self._held += chunk
            return b""
        cut = end - len(before) if end else len(chunk)
        ready = b"".join((self._held, chunk[:cut]))
        # A new one, for what was once long keeps its room.
        self._held = bytearray(chunk[cut:])
        return ready
