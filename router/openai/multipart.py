"""Parser for multipart forms, as spans of bytes of the body, so that a field can be replaced in place.

Stricter than RFC 7578, since no client needs the freedom that it allows. Preambles, and padding after delimiters, cost a parser a
step per byte. The worker that reads the form next may understand charsets, transfer encodings, and doubled, encoded or escaped
names differently.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from router.errors import BadRequest, TooManyParts
from router.openai.media_type import is_utf8, media_of

CONTENT_TYPE = "multipart/form-data"

MAX_PARTS = 64
MAX_HEADERS = 8
MAX_HEADER_BYTES = 1024
MAX_EPILOGUE_BYTES = 64
MAX_TEXT_BYTES = 2048
"""The longest text field, in bytes, that `fields` returns; prompts and files are not needed here."""

_HEAD_BYTES = 16 * 1024  # of a part: its headers, and a little of its content
_TAIL_BYTES = 1024
# No boundary contains it, so none is found that begins before the omitted bytes and ends behind them.
_LEFT_OUT = b"\0"

# RFC 2046 5.1.1, without characters that need quoting twice.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAMETER = re.compile(
    rb"""[ \t]*;[ \t]*([!#$%&'+.^_`|~*0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*+"|[^\s;"\\]+)"""
)
_FORM_DATA = b"form-data"
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form: its name, whether it is a file, and the span of its content in the body."""

    name: str
    is_file: bool
    start: int
    end: int


def fields(body: bytes, listed: Sequence[Part]) -> Mapping[str, str]:
    """Return the short text fields of a form that has these parts; raise `BadRequest` if it names `model` twice."""
    texts: dict[str, str] = {}
    # Files and other spellings count too: a worker may take any of them for the model.
    if sum(part.name.lower() == "model" for part in listed) > 1:
        raise BadRequest("the form names `model` twice", param="model")
    for part in listed:
        if part.is_file or part.end - part.start > MAX_TEXT_BYTES:
            continue
        try:
            texts[part.name] = body[part.start : part.end].decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{part.name!r} is not UTF-8", param=part.name) from error
    # RFC 7578 4.6: the value of this field is the charset of all other fields.
    if not is_utf8(texts.get("_charset_", "utf-8")):
        raise BadRequest("only UTF-8 is supported (`_charset_`)", param="_charset_")
    return texts


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    """Return the form with the content of the field `model` replaced; a form without one is returned unchanged."""
    for part in parts(body, content_type):
        if part.name == "model" and not part.is_file and part.end > part.start:
            return body[: part.start] + model.encode() + body[part.end :]
    return body


def without(body: bytes, content_type: str, names: Set[str]) -> bytes:
    """Return the form without every part, field or file, whose name is in `names`, ignoring case; all other bytes stay."""
    listed = parts(body, content_type)
    left_out = [part.name.lower() in names for part in listed]
    if not any(left_out):
        return body
    delimiter = b"--" + media_of(content_type).parameters["boundary"].encode()
    # The bytes after each delimiter: the parts, and the end.
    *blocks, end = (b"\r\n" + body).split(b"\r\n" + delimiter)[1:]
    if len(blocks) != len(listed):
        raise BadRequest("a part of the form is not terminated")
    kept = [block for block, out in zip(blocks, left_out, strict=True) if not out]
    return delimiter + (b"\r\n" + delimiter).join([*kept, end])


def parts(body: bytes, content_type: str) -> list[Part]:
    """List the parts of a form in order; raise `BadRequest` if it is malformed or exceeds a limit."""
    text = media_of(content_type).parameters.get("boundary", "")
    if not _BOUNDARY.fullmatch(text):
        raise BadRequest(
            "the content type of a form must name its boundary, of at most 70 characters"
        )
    boundary = text.encode()
    delimiters = _delimiters(body, boundary)
    reader = _Reader()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_header_field": reader.field,
                "on_header_value": reader.value,
                "on_header_end": reader.header,
                "on_headers_finished": reader.headers,
                "on_end": reader.finish,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        reader.read(parser, body, delimiters)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise BadRequest(f"the form is malformed{reader.fault}") from error
    if not reader.finished:
        raise BadRequest("the form is incomplete")
    return reader.parts


def _delimiters(body: bytes, boundary: bytes) -> list[int]:
    """Return where the delimiters begin; raise `BadRequest` unless they are well-formed, complete and few enough."""
    delimiter = b"--" + boundary
    if not boundary or not body.startswith(delimiter):
        raise BadRequest("the form does not begin with the boundary that its content type names")
    # One pass: a form with an image is long.
    offset, closing = 0, -1
    offsets: list[int] = []
    for _ in range(MAX_PARTS + 1):
        offsets.append(offset)
        after = offset + len(delimiter)
        if body.startswith(b"--", after):
            closing = offset
        elif not body.startswith(b"\r\n", after):
            closing = -1
            break
        offset = body.find(delimiter, after)
        if offset < 0:
            break
    else:
        raise TooManyParts(f"the form has more than {MAX_PARTS} parts")
    if closing < 0:
        raise BadRequest("a boundary of the form is malformed, or the last one is missing")
    if len(body) - closing > len(delimiter) + 2 + MAX_EPILOGUE_BYTES:
        raise BadRequest("the form continues after its end")
    return offsets


class _Reader:
    """Receiver of the parser's callbacks."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.finished = False
        self.fault = ""
        self._start = self._end = self._offset = 0
        self._piece = b""

    def read(self, parser: MultipartParser, body: bytes, delimiters: list[int]) -> None:
        """Let the parser read the body except the middle of long parts, where no delimiter is and none need be searched."""
        offset = 0
        for after, before in pairwise(delimiters):
            begun, ends = after + _HEAD_BYTES, before - _TAIL_BYTES
            if begun < ends:
                self._write(parser, body, offset, begun)
                offset = begun
                # Otherwise the part's headers go on.
                if self._start:
                    parser.write(_LEFT_OUT)
                    offset = ends
        self._write(parser, body, offset, len(body))

    def _write(self, parser: MultipartParser, body: bytes, start: int, end: int) -> None:
        self._offset, self._piece = start, body[start:end]
        parser.write(self._piece)

    def begin(self) -> None:
        self._name, self._is_file = "", False
        self._seen_names: set[bytes] = set()
        self._header = self._value = b""

    def field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header(self) -> None:
        name, value = self._header.lower(), self._value.strip()
        self._header = self._value = b""
        if name in self._seen_names:
            self._refuse("a part has a header twice")
        self._seen_names.add(name)
        match name:
            case b"content-disposition":
                options = _disposition(value)
                if options is None:
                    self._refuse('each part needs one Content-Disposition: form-data; name="…"')
                else:
                    self._name = options[b"name"].decode("utf-8", "replace")
                    self._is_file = bool(options.keys() & {b"filename", b"filename*"})
            case b"content-transfer-encoding" if value.lower() not in _AS_IT_IS:
                self._refuse("Content-Transfer-Encoding is not supported")
            case b"content-type" if b"charset" in value.lower():
                charset = value.lower().partition(b"charset")[2].strip(b" \t='\"")
                if not is_utf8(charset.decode("latin-1")):
                    self._refuse("only UTF-8 is supported in parts")

    def headers(self) -> None:
        if not self._name:
            self._refuse("a part has no name")

    def data(self, data: bytes, start: int, end: int) -> None:
        # Other data is what looked like the beginning of a boundary and was none.
        if data is self._piece:
            self._start = self._start or self._offset + start
            self._end = self._offset + end

    def end(self) -> None:
        self.parts.append(Part(self._name, self._is_file, self._start, self._end))
        self._start = self._end = 0

    def finish(self) -> None:
        self.finished = True

    def _refuse(self, fault: str) -> NoReturn:
        self.fault = f": {fault}"
        raise FormParserError(fault)


def _disposition(value: bytes) -> Mapping[bytes, bytes] | None:
    """Read the parameters of a part's `Content-Disposition`; `None` if two parsers might find two names in it."""
    if value[: len(_FORM_DATA)].lower() != _FORM_DATA:
        return None
    parameters: dict[bytes, bytes] = {}
    offset = len(_FORM_DATA)
    while offset < len(value):
        parameter = _PARAMETER.match(value, offset)
        if parameter is None or parameter[1].lower() in parameters:
            return None
        if b'\\"' in parameter[2] and b";" in parameter[2]:
            return None  # a parser without escapes would find a parameter in the quotes
        offset = parameter.end()
        parameters[parameter[1].lower()] = parameter[2]
    names = [name for name in parameters if name.startswith(b"name")]
    if names != [b"name"] or b"\\" in parameters[b"name"]:
        return None
    parameters[b"name"] = parameters[b"name"].strip(b'"')
    return parameters
