"""Usage: the tokens of an answer, requested from the worker if the caller did not, and read from the bytes that pass.

The usage option, `stream_options.include_usage`, makes a worker report usage in one more event, without choices, before `[DONE]`.
If the node added the option, that event is removed again. Only events that report tokens are parsed.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from registry.values import value_class
from router.openai import large_json
from router.openai.event_texts import contains
from router.openai.members import members, wanted
from router.openai.sse import Splitter, data_of
from router.requests import Kind

TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
"""Kinds of request whose answers workers stream as text, and report the tokens of."""

ASK_AGAIN = 600.0
"""Seconds after which a worker that refused the usage option is sent it once more: it may have been replaced."""

MAX_WORKERS = 4_096
"""Addresses that are remembered; beyond that all are forgotten, which costs one refused request for each."""

_DECODER = json.JSONDecoder()
_REFUSALS = frozenset({400, 422})
_QUESTION_NAMES = (b"stream_options", b"include_usage")
_AT_END_BYTES = 2_048
_NO_CHOICES = b"[]"
_DETAILS = "prompt_tokens_details"
COUNTS = wanted(("prompt_tokens", "completion_tokens", "estimated"), (_DETAILS,), (), (), None)
"""What `parse_usage` reads of a usage object."""

_USAGE = wanted((), (), (), ("usage",), COUNTS)
_CHOICES = wanted((), ("choices",), (), (), None)
_TOKEN_BITS = 53
"""The most bits of a number of tokens: JSON parsers need not tell larger ones apart, and receipts do not take them."""
# In a text these quotes would be escaped, so only a usage object contains this.
_REPORTED = b'"prompt_tokens"'
_OPTIONS = b'"stream_options"'
_QUESTION = b'"include_usage":true'
_REQUESTED = re.compile(rb'"include_usage"[ \t\r\n]*:[ \t\r\n]*true')
_DECLINED = re.compile(rb'"include_usage"[ \t\r\n]*:[ \t\r\n]*(?:false|null)')
# The field has never been anything except an object without nested objects.
_VALUE = re.compile(
    rb'"stream_options"[ \t\r\n]*:[ \t\r\n]*(null|\{(?:[^{}"]++|"[^"\\]*+")*+\})', re.DOTALL
)


@value_class
class Usage:
    """Tokens read and written.

    `estimated` says that the worker did not report them: for a stream `completion` is then its number of events but the first,
    and `prompt` 0. `cached` are the prompt's tokens that were in the worker's cache, `None` if it does not report them.
    """

    prompt: int
    completion: int
    estimated: bool = False
    cached: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        estimated = self.estimated or other.estimated
        return Usage(self.prompt + other.prompt, self.completion + other.completion, estimated)


def add_usage_option(body: bytes) -> bytes | None:
    """Return the JSON object `body` with the usage option added, all other bytes unchanged.

    Return `None` if it asks already, or if its options are written so that nothing can be inserted without parsing all of it.
    """
    if not contains(body, _OPTIONS):
        return _put_first(body)
    if _REQUESTED.search(body):
        return None
    fields = large_json.loads(body)
    if "stream_options" not in fields:
        return _put_first(body)
    values = list(_VALUE.finditer(body))
    options = fields["stream_options"]
    # A `stream_options` that is nested deeper is another field.
    if len(values) != 1 or orjson.loads(values[0][1]) != options:
        return None
    if options and not any(options.get("include_usage") is no for no in (None, False)):
        return None
    start, end = values[0].span(1)
    return body[:start] + _with_option(body[start:end]) + body[end:]


def has_stream_options(body: bytes) -> bool:
    """Return whether a request has stream options, which may contain the usage option."""
    return contains(body, _OPTIONS)


def read_usage(answer: object) -> Usage | None:
    """Return the usage in a parsed answer, `None` without a valid one."""
    if not isinstance(answer, dict):
        return None
    return parse_usage(answer.get("usage"))


def parse_usage(usage: object) -> Usage | None:
    """Return what a usage object tells, parsed or as `members` found it; `None` if it is not valid."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not (isinstance(prompt, int) and isinstance(completion, int)):
        return None
    # This also refuses negative numbers, whose sign bits never end.
    if (prompt | completion) >> _TOKEN_BITS:
        return None
    details = usage.get(_DETAILS)
    cached = _cached(details, prompt) if details else None
    # JSON's `true` is an int to Python; the plus makes it 1.
    return Usage(+prompt, +completion, usage.get("estimated") is True, cached)


def _cached(details: object, prompt: int) -> int | None:
    if isinstance(details, bytes):
        details = orjson.loads(details)
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return int(cached) if isinstance(cached, int) and 0 <= cached <= prompt else None


def read_usage_at_end(body: bytes) -> Usage | None:
    """Return the usage at the end of a JSON answer, without parsing the rest."""
    if len(body) <= _AT_END_BYTES:
        fields = members(body, _USAGE)
        if fields is not None:
            return read_usage(fields)
    end = body[-_AT_END_BYTES:]
    index = end.rfind(b'"usage"')
    begins = end.find(b"{", index)
    if index < 0 or begins < 0:
        return None
    ends = end.find(b"}", begins) + 1
    if ends == 0:
        return None
    # Most often the usage contains no other object.
    if end.find(b"{", begins + 1, ends) < 0 and (usage := parse_object(end[begins:ends])):
        return read_usage({"usage": usage})
    try:
        deep, _ = _DECODER.raw_decode(end[begins:].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return read_usage({"usage": deep})


@dataclass(frozen=True, slots=True)
class UsageFormat:
    """Where a stream reports its tokens: in events that contain `sign`, whose data `read` reads."""

    sign: bytes
    read: Callable[[bytes], Usage | None]


def _read_usage_event(event: bytes) -> Usage | None:
    fields = members(event, _USAGE)
    return read_usage(parse_object(event) if fields is None else fields)


OPENAI = UsageFormat(_REPORTED, _read_usage_event)


class StreamUsage:
    """The tokens of one event stream, read as it passes in whole events. `events` counts the events but the first."""

    __slots__ = ("_format", "_hidden", "_last", "_reported", "events", "sign")

    def __init__(self, *, hidden: bool, usage_format: UsageFormat = OPENAI) -> None:
        """Start with no events. `hidden` says that the node asked for usage: the event with it is not for the caller."""
        self.events = 0
        self.sign = usage_format.sign
        """The bytes by which an event with usage is found."""
        self._hidden = hidden
        self._format = usage_format
        self._reported: Usage | None = None
        self._last = b""

    def inspect(self, events: bytes) -> bytes:
        """Take in events that are ready to be sent, and return what the caller is to see of them."""
        if not contains(events, self.sign):
            return events
        if not self._hidden:
            # Some workers report usage after every token; only the last report counts, so only that one is parsed.
            self._last = events
            return events
        return self._read(events)

    def usage(self) -> Usage:
        """Return the usage of the stream so far."""
        if self._last:
            self._read(self._last)
            self._last = b""
        return self._reported or Usage(0, self.events, estimated=True)

    def _read(self, events: bytes) -> bytes:
        # Of several events that arrive together, the last one has the usage; it begins after the blank line before it.
        sign = self.sign
        sign_at = events.index(sign)
        index = events.rfind(b"\n\n", 0, sign_at)
        begins, ends = index + 2 if index >= 0 else 0, events.find(b"\n\n", sign_at) + 2
        # Nearly always only one event has usage, and its lines end with a line feed alone.
        if ends >= 2 and not contains(events, b"\r") and events.find(sign, ends) < 0:
            kept = self._take_usage(data_of(events[begins:ends]))
            return events if kept else events[:begins] + events[ends:]
        splitter = Splitter(max_event_bytes=len(events))
        split = (*splitter.feed(events[begins:]), *splitter.finish())
        return events[:begins] + b"".join([one.raw for one in split if self._take_usage(one.data)])

    def _take_usage(self, data: bytes) -> bool:
        """Take in the usage of an event, and return whether the caller is to see the event."""
        if not contains(data, self.sign):
            return True
        usage = self._format.read(data)
        self._reported = usage or self._reported
        return usage is None or not self._hidden or _has_choices(data)


class OptionSupport:
    """Workers that accept the usage option, by address. An unknown worker is sent it; if it refuses, it is asked without it."""

    def __init__(self, *names: bytes) -> None:
        """Start with no known workers. `names` are the words by which a refusal names the option, by default its fields."""
        self._names = names or _QUESTION_NAMES
        self._refused_at: dict[str, float] = {}
        self._accepting: set[str] = set()

    def should_send(self, api: str, now: float) -> bool:
        """Return whether a worker is to be sent the usage option."""
        since = self._refused_at.get(api)
        return since is None or now - since >= ASK_AGAIN

    def is_accepted(self, api: str) -> bool:
        """Return whether a worker is known to accept the usage option."""
        return api in self._accepting

    def may_be_due_to_option(self, api: str, status: int, refusal: bytes) -> bool:
        """Return whether a refusal may be due to the usage option: it names it, or this worker never accepted it."""
        if status not in _REFUSALS:
            return False
        return api not in self._accepting or any(name in refusal for name in self._names)

    def record_accepted(self, api: str) -> None:
        """Record that a worker answered a request that had the usage option."""
        if api not in self._accepting:
            self._make_room()
            self._accepting.add(api)
            self._refused_at.pop(api, None)

    def record_refused(self, api: str, now: float) -> None:
        """Record that a worker refused a request that had the usage option, and answered the same one without it."""
        self._make_room()
        self._refused_at[api] = now
        self._accepting.discard(api)

    def _make_room(self) -> None:
        if len(self._refused_at) + len(self._accepting) >= MAX_WORKERS:
            self._refused_at.clear()
            self._accepting.clear()


def _has_choices(event: bytes) -> bool:
    fields = members(event, _CHOICES)
    if fields is None:
        return bool(parse_object(event).get("choices"))
    choices = fields.get("choices", _NO_CHOICES)
    return choices != _NO_CHOICES and bool(orjson.loads(choices))


def _put_first(body: bytes) -> bytes:
    return b'{"stream_options":{%b},%b' % (_QUESTION, body[body.index(b"{") + 1 :])


def _with_option(options: bytes) -> bytes:
    if options == b"null":
        return b"{%b}" % _QUESTION
    declined = _DECLINED.search(options)
    if declined is not None:
        return options[: declined.start()] + _QUESTION + options[declined.end() :]
    comma = b"," if options[1:-1].strip() else b""
    return b"{%b%b%b" % (_QUESTION, comma, options[1:])


def parse_object(data: bytes) -> dict[str, object]:
    """Return a JSON object, empty if it is invalid or something else."""
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
