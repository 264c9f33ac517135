"""Which bytes of a multipart form are which field? Spans into the body, so that a field can be replaced in place.

Follows RFC 7578. Forms are read more strictly than the RFC allows, because its latitude (preambles, padding after
delimiters) is used by nobody and costs a parser a step per byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from router.errors import BadRequest

CONTENT_TYPE = "multipart/form-data"

MAX_PARTS = 64
MAX_HEADERS = 8
MAX_HEADER_BYTES = 1024
MAX_EPILOGUE_BYTES = 64
MAX_TEXT_BYTES = 2048
"""The longest text field that `fields` returns; prompts and files are nobody's business here."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form: its name, whether it is a file, and where its content lies in the body."""

    name: str
    is_file: bool
    start: int
    end: int


def fields(body: bytes, content_type: str) -> Mapping[str, str]:
    """Return the short text fields of a form; raise `BadRequest` when it is malformed or names `model` twice."""
    found: dict[str, str] = {}
    for part in parts(body, content_type):
        if part.is_file or part.end - part.start > MAX_TEXT_BYTES:
            continue
        if part.name == "model" and "model" in found:
            raise BadRequest("the form names `model` twice", param="model")
        try:
            found[part.name] = body[part.start : part.end].decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{part.name!r} is not UTF-8", param=part.name) from error
    return found


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    """Replace the content of the field `model`; a form without one is returned as it is."""
    for part in parts(body, content_type):
        if part.name == "model" and not part.is_file and part.end > part.start:
            return body[: part.start] + model.encode() + body[part.end :]
    return body


def parts(body: bytes, content_type: str) -> list[Part]:
    """List the parts of a form in their order; raise `BadRequest` when it is malformed or beyond a limit."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    _check_delimiters(body, boundary)
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
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise BadRequest("the form is malformed") from error
    if not reader.finished:
        raise BadRequest("the form breaks off before its end")
    return reader.parts


def _check_delimiters(body: bytes, boundary: bytes) -> None:
    delimiter = b"--" + boundary
    if not boundary or not body.startswith(delimiter):
        raise BadRequest("the form does not begin with the boundary that its content type names")
    seen = body.count(delimiter)
    if seen > MAX_PARTS + 1:
        raise BadRequest(f"the form has more than {MAX_PARTS} parts", status=413)
    closing = body.rfind(delimiter + b"--")
    plain = body.count(delimiter + b"\r\n")
    if closing < 0 or plain + body.count(delimiter + b"--") != seen:
        raise BadRequest("a boundary of the form is malformed, or the last one is missing")
    if len(body) - closing > len(delimiter) + 2 + MAX_EPILOGUE_BYTES:
        raise BadRequest("the form goes on after its end")


class _Reader:
    """Takes in what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.finished = False
        self._start = self._end = 0

    def begin(self) -> None:
        self._name, self._is_file = "", False
        self._header = self._value = b""
        self._start = self._end = 0

    def field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header(self) -> None:
        if self._header.lower() == b"content-disposition":
            options = parse_options_header(self._value.decode("latin-1"))[1]
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._is_file = b"filename" in options
        self._header = self._value = b""

    def headers(self) -> None:
        if not self._name:
            raise FormParserError("a part has no name")

    def data(self, data: bytes, start: int, end: int) -> None:  # noqa: ARG002 (the body, always)
        self._start = self._start or start
        self._end = end

    def end(self) -> None:
        self.parts.append(Part(self._name, self._is_file, self._start, self._end))

    def finish(self) -> None:
        self.finished = True
