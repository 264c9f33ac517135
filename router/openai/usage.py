"""Usage: the tokens that an answer took. Asked of the worker where the caller did not, and read from the bytes that pass.

`stream_options.include_usage` makes a worker say it in one more event, with no choices, before `[DONE]`. Where we put the
question, that event is taken out again. No event is parsed but one that tells tokens.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from registry.values import value_class
from router.openai import large_json
from router.openai.sse import Splitter, data_of
from router.requests import Kind

TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
"""What workers stream as text, and tell the tokens of."""

ASK_AGAIN = 600.0
"""Seconds after which a worker that refused the question is asked it once more: it may have been replaced."""

MAX_WORKERS = 4_096
"""Addresses that are remembered; beyond that all are forgotten, which costs one refused question each."""

_DECODER = json.JSONDecoder()
_REFUSALS = frozenset({400, 422})
_QUESTION_NAMES = (b"stream_options", b"include_usage")
_AT_END_BYTES = 2_048
_TOKEN_BITS = 53
"""Bits that a number of tokens has at most: readers of JSON need not tell larger ones apart, and no receipt takes them."""
# In a text these quotes would be escaped, so only an object of usage has this.
_TOLD = b'"prompt_tokens"'
_OPTIONS = b'"stream_options"'
_QUESTION = b'"include_usage":true'
_ASKED = re.compile(rb'"include_usage"[ \t\r\n]*:[ \t\r\n]*true')
_DECLINED = re.compile(rb'"include_usage"[ \t\r\n]*:[ \t\r\n]*(?:false|null)')
# An object without objects in it is all that the field has ever been.
_VALUE = re.compile(
    rb'"stream_options"[ \t\r\n]*:[ \t\r\n]*(null|\{(?:[^{}"]++|"[^"\\]*+")*+\})', re.DOTALL
)


@value_class
class Usage:
    """Tokens read and written. `estimated` says that nobody told: `completion` is then the events of the stream, `prompt` 0.

    `cached` are those of the read ones that were in the worker's cache, `None` where it does not tell.
    """

    prompt: int
    completion: int
    estimated: bool = False
    cached: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        estimated = self.estimated or other.estimated
        return Usage(self.prompt + other.prompt, self.completion + other.completion, estimated)


def asking(body: bytes) -> bytes | None:
    """Return the JSON object `body` with the question for usage in it, all other bytes as they came.

    `None` when it asks already, or writes its options in a way in which nothing can be put without reading all of it.
    """
    if _OPTIONS not in body:
        return _put_first(body)
    if _ASKED.search(body):
        return None
    fields = large_json.loads(body)
    if "stream_options" not in fields:
        return _put_first(body)
    values = list(_VALUE.finditer(body))
    options = fields["stream_options"]
    # One that stands deeper down is somebody else's.
    if len(values) != 1 or orjson.loads(values[0][1]) != options:
        return None
    if options and not any(options.get("include_usage") is no for no in (None, False)):
        return None
    start, end = values[0].span(1)
    return body[:start] + _answering(body[start:end]) + body[end:]


def asks_itself(body: bytes) -> bool:
    """Say whether a request has options for its stream, with a question of its own perhaps."""
    return _OPTIONS in body


def told(said: object) -> Usage | None:
    """Return the usage that a parsed answer or event tells."""
    if not isinstance(said, dict):
        return None
    usage = said.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not (isinstance(prompt, int) and isinstance(completion, int)):
        return None
    # A negative number has bits beyond any.
    if (prompt | completion) >> _TOKEN_BITS:
        return None
    details = usage.get("prompt_tokens_details")
    cached = _cached(details, prompt) if details else None
    # JSON's `true` is an int to Python; the plus makes it 1.
    return Usage(+prompt, +completion, usage.get("estimated") is True, cached)


def _cached(details: object, prompt: int) -> int | None:
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return int(cached) if isinstance(cached, int) and 0 <= cached <= prompt else None


def told_at_end(body: bytes) -> Usage | None:
    """Return the usage that stands at the end of a long JSON answer, which is not parsed."""
    end = body[-_AT_END_BYTES:]
    at = end.rfind(b'"usage"')
    begins = end.find(b"{", at)
    if at < 0 or begins < 0:
        return None
    ends = end.find(b"}", begins) + 1
    if ends == 0:
        return None
    # Most often no other object is in it.
    if end.find(b"{", begins + 1, ends) < 0 and (said := _parsed(end[begins:ends])):
        return told({"usage": said})
    try:
        deep, _ = _DECODER.raw_decode(end[begins:].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return told({"usage": deep})


@dataclass(frozen=True, slots=True)
class Tells:
    """Where a stream tells its tokens: in events that hold `sign`, whose parsed data `read` reads."""

    sign: bytes
    read: Callable[[object], Usage | None]


OPENAI = Tells(_TOLD, told)


class Tokens:
    """The tokens of one event stream, seen as it passes in whole events. `events` are those that went by."""

    __slots__ = ("_hidden", "_last", "_tells", "_told", "events", "sign")

    def __init__(self, *, hidden: bool, tells: Tells = OPENAI) -> None:
        """`hidden` says that we asked: the event that answers is not the caller's."""
        self.events = 0
        self.sign = tells.sign
        """What an event holds that tells."""
        self._hidden = hidden
        self._tells = tells
        self._told: Usage | None = None
        self._last = b""

    def passing(self, events: bytes) -> bytes:
        """Take in what is ready to be sent and return what the caller is to see of it."""
        if self.sign not in events:
            return events
        if not self._hidden:
            # Some workers tell after every token; only the last word counts, and only once.
            self._last = events
            return events
        return self._read(events)

    def usage(self) -> Usage:
        """Return what the stream has taken so far."""
        if self._last:
            self._read(self._last)
            self._last = b""
        return self._told or Usage(0, self.events, estimated=True)

    def _read(self, events: bytes) -> bytes:
        # Of many events that come together the last one tells; where it begins, the blank line before it says.
        sign = self.sign
        tells = events.index(sign)
        at = events.rfind(b"\n\n", 0, tells)
        begins, ends = at + 2 if at >= 0 else 0, events.find(b"\n\n", tells) + 2
        # Nearly always only one event tells, in lines that end with a line feed alone.
        if ends >= 2 and b"\r" not in events and events.find(sign, ends) < 0:
            kept = self._kept(data_of(events[begins:ends]))
            return events if kept else events[:begins] + events[ends:]
        splitter = Splitter(max_event_bytes=len(events))
        split = (*splitter.feed(events[begins:]), *splitter.finish())
        return events[:begins] + b"".join([one.raw for one in split if self._kept(one.data)])

    def _kept(self, data: bytes) -> bool:
        """Take in what an event tells, and say whether its caller is to see it."""
        if self.sign not in data:
            return True
        said = _parsed(data)
        usage = self._tells.read(said)
        self._told = usage or self._told
        return usage is None or bool(said.get("choices"))


class Takers:
    """Which workers take the question, by address. One that is not known to gets it, and is asked without it if it refuses."""

    def __init__(self, *names: bytes) -> None:
        """`names` are words by which a refusal names the question, `stream_options` where none are given."""
        self._names = names or _QUESTION_NAMES
        self._refused: dict[str, float] = {}
        self._takers: set[str] = set()

    def takes(self, api: str, now: float) -> bool:
        """Say whether a worker is to be asked."""
        since = self._refused.get(api)
        return since is None or now - since >= ASK_AGAIN

    def may_mind(self, api: str, status: int, refusal: bytes) -> bool:
        """Say whether a refusal may be one of our question: it names it, or this worker never took it."""
        if status not in _REFUSALS:
            return False
        return api not in self._takers or any(word in refusal for word in self._names)

    def took(self, api: str) -> None:
        """A worker answered a request with the question in it."""
        if api not in self._takers:
            self._make_room()
            self._takers.add(api)
            self._refused.pop(api, None)

    def refused(self, api: str, now: float) -> None:
        """A worker refused a request with the question in it, and answered the same without."""
        self._make_room()
        self._refused[api] = now
        self._takers.discard(api)

    def _make_room(self) -> None:
        if len(self._refused) + len(self._takers) >= MAX_WORKERS:
            self._refused.clear()
            self._takers.clear()


def _put_first(body: bytes) -> bytes:
    return b'{"stream_options":{%b},%b' % (_QUESTION, body[body.index(b"{") + 1 :])


def _answering(options: bytes) -> bytes:
    if options == b"null":
        return b"{%b}" % _QUESTION
    declined = _DECLINED.search(options)
    if declined is not None:
        return options[: declined.start()] + _QUESTION + options[declined.end() :]
    comma = b"," if options[1:-1].strip() else b""
    return b"{%b%b%b" % (_QUESTION, comma, options[1:])


def _parsed(data: bytes) -> Mapping[str, object]:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}
