"""Parser of a worker's further options: headers, load options, template. Decoded JSON in, values out."""

from collections.abc import Mapping
from typing import Any, get_args

import orjson

from node.faces.errors import Unparseable, WrongParameter
from node.faces.request_reader import number_of, text_of
from router import worker_headers
from router.worker_description import MODALITIES, abilities_of
from router.worker_headers import MAX_HEADERS, MAX_HEADERS_BYTES
from router.workers import TEMPLATES, Scalar, Template

MAX_CAPACITY = 1_000_000
MAX_OPTIONS = 64
MAX_OPTIONS_BYTES = 4096
"""The most options of one worker, and the bytes that they may have as JSON."""

MAX_INTEGER = 2**63 - 1
_MAX_NAME_CHARACTERS = 64
_SCALARS = get_args(Scalar)


def headers_of(given: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Read what is sent with every request, by lower-case names; raise `Unparseable` or `WrongParameter`."""
    rows = _object(given, "headers")
    headers: dict[str, str] = {}
    for said, value in rows.items():
        name = said.lower()
        if not isinstance(value, str):
            raise Unparseable("Parsing error")
        if name in headers:
            raise WrongParameter(f"the header {name[:64]!r} is named twice", param="headers")
        if objection := worker_headers.objection(name, value):
            raise WrongParameter(objection, param="headers")
        headers[name] = value
    if len(headers) > MAX_HEADERS or worker_headers.size(headers.items()) > MAX_HEADERS_BYTES:
        raise WrongParameter(
            f"a worker has at most {MAX_HEADERS} headers, of {MAX_HEADERS_BYTES} bytes together",
            param="headers",
        )
    return tuple(sorted(headers.items()))


def load_of(given: Mapping[str, Any]) -> str:
    """Read the options to load the model with, as JSON; raise `Unparseable` or `WrongParameter`."""
    rows = _object(given, "load")
    if not rows:
        return ""
    for name, value in rows.items():
        _check_option(name, value)
    options = orjson.dumps(rows, option=orjson.OPT_SORT_KEYS)
    if len(rows) > MAX_OPTIONS or len(options) > MAX_OPTIONS_BYTES:
        raise WrongParameter(
            f"load has at most {MAX_OPTIONS} options, of {MAX_OPTIONS_BYTES} bytes together as JSON",
            param="load",
        )
    return options.decode()


def template_of(given: Mapping[str, Any]) -> Template:
    """Read how a chat becomes one text for the worker; raise `Unparseable` or `WrongParameter`."""
    said = text_of(given, "template")
    for template in TEMPLATES:
        if template == said:
            return template
    known = ", ".join(filter(None, TEMPLATES))
    raise WrongParameter(
        f"the template {said[:64]!r} is not known; there are: {known}", param="template"
    )


def abilities_in(given: Mapping[str, Any]) -> int:
    """Read what the model takes and gives, 0 where nothing is said; raise `Unparseable` or `WrongParameter`."""
    inputs, outputs = (_words(given, f"{way}_modalities") for way in ("input", "output"))
    return int(abilities_of(inputs, outputs))


def _words(given: Mapping[str, Any], name: str) -> list[str]:
    words = given.get(name)
    if words is None:
        return []
    if not isinstance(words, list):
        raise Unparseable("Parsing error")
    for word in words:
        if word not in MODALITIES:
            raise WrongParameter(f"{name} holds {', '.join(MODALITIES)}", param=name)
    return words


def capacity_of(given: Mapping[str, Any]) -> int:
    """Read how many requests the worker takes at one time, under either name; raise `Unparseable` or `WrongParameter`."""
    capacity = number_of(given, "capacity")
    same = number_of(given, "max_concurrency", default=capacity)
    if given.get("capacity") is not None and same != capacity:
        raise WrongParameter(
            "capacity and max_concurrency are two names of one thing, and differ", param="capacity"
        )
    if not 0 <= same <= MAX_CAPACITY:
        raise WrongParameter(
            f"capacity is a number of requests from 0 (unknown) to {MAX_CAPACITY}", param="capacity"
        )
    return same


def _object(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rows = given.get(name)
    if rows is None:
        return {}
    if not isinstance(rows, dict):
        raise Unparseable("Parsing error")
    return rows


def _check_option(name: str, value: object) -> None:
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or not name.isascii() or not name.isprintable():
        raise WrongParameter(
            f"an option's name has 1 to {_MAX_NAME_CHARACTERS} printable ASCII characters",
            param="load",
        )
    for one in value if isinstance(value, list) else (value,):
        if not isinstance(one, _SCALARS) or (isinstance(one, int) and abs(one) > MAX_INTEGER):
            raise WrongParameter(
                f"the option {name!r} must be a text, a number, true or false, or a list of such",
                param="load",
            )
