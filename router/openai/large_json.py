"""Parser for large JSON in small steps: in a thread, it lets other threads run in between.

orjson is faster, but it parses everything in one call, during which no other thread runs, not even the event loop.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson

LONG_BYTES = 16 * 1024 * 1024
"""The longest JSON that is parsed at once: if it is one string, that takes 30 ms."""

MANY_PARTS = 200_000
"""The most strings and commas of JSON that is parsed at once: that takes 40 ms at worst."""

SMALL_BYTES = 512 * 1024
"""The most bytes of JSON that need no check: it cannot have so many parts that parsing takes long."""

RARE = 1_000
"""Occurrences of a byte that are searched one by one, which takes 60 µs; beyond that `bytes.count` counts the rest."""

MAX_DEPTH = 250
"""The deepest nesting of arrays and objects."""

_SPACES = re.compile(rb"[ \t\r\n]{0,65536}+")
_ESCAPE = (
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
)
_SHORT = rb'"(?:[^"\\\x00-\x1f]{1,4096}+|' + _ESCAPE + rb'){0,16}+"'
_SCALAR = rb"-?[0-9][0-9.eE+-]{0,400}+|true|false|null"
_GAP = rb"[ \t\r\n]{0,64}+"
_STRING = re.compile(_SHORT)
_PLAIN = re.compile(_SCALAR)
_STRETCH = re.compile(rb'(?:[^"\\\x00-\x1f]{1,65536}+|' + _ESCAPE + rb"){1,8}+")
_VALUE = rb"(?:" + _SHORT + rb"|" + _SCALAR + rb")"
# Members and items without nested ones, each with its comma: a thousand of them take a millisecond.
_ITEMS = re.compile(rb"(?:" + _GAP + _VALUE + _GAP + rb",){1,1000}+")
_MEMBERS = re.compile(
    rb"(?:" + _GAP + _SHORT + _GAP + rb":" + _GAP + _VALUE + _GAP + rb",){1,1000}+"
)


class NotJson(Exception):
    """The bytes are no JSON object or array, or one that is nested too deeply."""


Container = dict[str, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class FieldSpan:
    """Where a top-level field begins, where its value begins, and where the value ends."""

    name: str
    start: int
    value: int
    end: int


@dataclass(slots=True)
class Parsed:
    """A value, and the spans of the requested top-level fields."""

    value: object = None
    spans: list[FieldSpan] = field(default_factory=list)


def count_of(mark: bytes, body: bytes) -> int:
    """Count a byte in a body; a rare one takes a tenth of the time of `bytes.count`."""
    after = 0
    for count in range(RARE):
        after = body.find(mark, after) + 1
        if not after:
            return count
    return RARE + body.count(mark, after)


def is_large(body: bytes, commas: int | None = None) -> bool:
    """Return whether parsing this at once would block the event loop; `commas` is their number if it is known."""
    if len(body) <= SMALL_BYTES:
        return False
    if len(body) > LONG_BYTES:
        return True
    parts = count_of(b",", body) if commas is None else commas
    return parts > MANY_PARTS or count_of(b'"', body) // 2 + parts > MANY_PARTS


def loads(body: bytes) -> Any:
    """Return the parsed JSON, read in small steps if it is large; raise `NotJson` or `JSONDecodeError`."""
    return parse(body).value if is_large(body) else orjson.loads(body)


def parse(body: bytes, names: frozenset[str] = frozenset()) -> Parsed:
    """Return a JSON object or array, and the spans of the fields of these names; raise `NotJson`.

    Fields whose names are written with escapes are not found.
    """
    try:
        return _Parser(body, names).run()
    except orjson.JSONDecodeError as error:
        raise NotJson(error.msg) from error


class _Parser:
    def __init__(self, body: bytes, names: frozenset[str]) -> None:
        self._body = body
        self._names = names
        self._quoted = tuple(b'"%b"' % name.encode() for name in names)
        self._parsed = Parsed()
        self._offset = 0
        self._open: list[tuple[Container, str, int, int]] = []
        """The containers around the current value, each with its key and where key and value begin."""

    def run(self) -> Parsed:
        self._open_one(self._next(), "", 0)
        fresh = True
        while self._open:
            holder = self._open[-1][0]
            run = self._run(holder)
            if run:
                fresh = False
            if fresh and self._next() == (b"}" if isinstance(holder, dict) else b"]"):
                self._offset += 1
                self._close()
                fresh = self._after()
                continue
            start = self._space()
            key = self._key() if isinstance(holder, dict) else ""
            first = self._next()
            if first in (b"{", b"["):
                self._open_one(first, key, start)
                fresh = True
                continue
            value = self._offset
            self._put(holder, key, self._string() if first == b'"' else self._plain(), start, value)
            fresh = self._after()
        if self._space() < len(self._body):
            self._fail("there is text after the end")
        return self._parsed

    def _run(self, holder: Container) -> bool:
        """Parse a run of members or items without nested ones at once; return whether there were any."""
        is_object = isinstance(holder, dict)
        match = (_MEMBERS if is_object else _ITEMS).match(self._body, self._offset)
        if match is None:
            return False
        piece = match[0][:-1]
        if len(self._open) == 1 and any(name in piece for name in self._quoted):
            return False
        if isinstance(holder, dict):
            holder.update(orjson.loads(b"{%b}" % piece))
        else:
            holder.extend(orjson.loads(b"[%b]" % piece))
        self._offset = match.end()
        return True

    def _open_one(self, first: bytes, key: str, start: int) -> None:
        if first not in (b"{", b"["):
            self._fail("neither object nor array")
        if len(self._open) >= MAX_DEPTH:
            self._fail(f"nested too deeply; at most {MAX_DEPTH} levels")
        self._open.append(({} if first == b"{" else [], key, start, self._offset))
        self._offset += 1

    def _close(self) -> None:
        closed, key, start, value = self._open.pop()
        if self._open:
            self._put(self._open[-1][0], key, closed, start, value)
        else:
            self._parsed.value = closed

    def _put(self, holder: Container, key: str, value: object, start: int, begins: int) -> None:
        if isinstance(holder, list):
            holder.append(value)
            return
        holder[key] = value
        if len(self._open) == 1 and key in self._names:
            self._parsed.spans.append(FieldSpan(key, start, begins, self._offset))

    def _after(self) -> bool:
        """Close ended containers up to a comma, and skip it; always return false: no end may follow a comma."""
        while self._open:
            closing = b"}" if isinstance(self._open[-1][0], dict) else b"]"
            match self._next():
                case b",":
                    self._offset += 1
                    return False
                case char if char == closing:
                    self._offset += 1
                    self._close()
                case _:
                    self._fail("a comma or an end is missing")
        return False

    def _key(self) -> str:
        if self._next() != b'"':
            self._fail("a name is missing")
        key = self._string()
        if self._next() != b":":
            self._fail("a colon is missing")
        self._offset += 1
        return key

    def _string(self) -> str:
        if (short := _STRING.match(self._body, self._offset)) is not None:
            self._offset = short.end()
            return str(orjson.loads(short[0]))
        self._offset += 1
        pieces: list[str] = []
        while (stretch := _STRETCH.match(self._body, self._offset)) is not None:
            body, end = self._body, stretch.end()
            # Do not cut within a UTF-8 character.
            while end < len(body) and body[end] & 0xC0 == 0x80 and end > self._offset + 1:
                end -= 1
            pieces.append(orjson.loads(b'"%b"' % body[self._offset : end]))
            self._offset = end
        if self._body[self._offset : self._offset + 1] != b'"':
            self._fail("a string does not end")
        self._offset += 1
        return "".join(pieces)

    def _plain(self) -> object:
        match = _PLAIN.match(self._body, self._offset)
        if match is None:
            self._fail("a value is missing")
        self._offset = match.end()
        return orjson.loads(match[0])

    def _space(self) -> int:
        while (spaces := _SPACES.match(self._body, self._offset)) is not None and spaces[0]:
            self._offset = spaces.end()
        return self._offset

    def _next(self) -> bytes:
        index = self._space()
        return self._body[index : index + 1]

    def _fail(self, reason: str) -> NoReturn:
        raise NotJson(f"{reason}, at byte {self._offset}")
