"""Parser of registrations. Decoded JSON in, workers out; error messages are api-v0's.

It has no side effects, except that `SsrfGuard` looks up whether a host is this machine, and that header values in files are read.

It also parses a worker's further options: headers, load options, template.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

import orjson
from yarl import URL

from node.faces.errors import NotAllowed, Unparseable, WrongParameter
from node.faces.request_reader import lower_keys, number_of, text_of
from registry.records import Key, ModelType, Service
from registry.wire import MAX_CONTEXT, MAX_NAME_BYTES, is_name
from router import dialects, worker_headers
from router.dialects.openai_http.endpoints import mark_single_endpoint
from router.errors import WorkerFailed
from router.ssrf_guard import SsrfGuard
from router.translate import verbatim
from router.worker_description import MODALITIES, abilities_of
from router.worker_headers import MAX_HEADERS, MAX_HEADERS_BYTES
from router.workers import TEMPLATES, Scalar, Template, Worker

MAX_CAPACITY = 1_000_000
MAX_OPTIONS = 64
MAX_OPTIONS_BYTES = 4096
"""The most load options of one worker, and their most bytes as JSON."""

MAX_INTEGER = 2**63 - 1
_MAX_NAME_CHARACTERS = 64
_SCALARS = get_args(Scalar)


def headers_of(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the headers to send with every request, by lower-case name; raise `Unparseable` or `WrongParameter`."""
    rows = _object(fields, "headers")
    headers: dict[str, str] = {}
    for header, value in rows.items():
        name = header.lower()
        if not isinstance(value, str):
            raise Unparseable("Parsing error")
        if name in headers:
            raise WrongParameter(f"the header {name[:64]!r} occurs twice", param="headers")
        if objection := worker_headers.objection(name, value):
            raise WrongParameter(objection, param="headers")
        headers[name] = value
    if len(headers) > MAX_HEADERS or worker_headers.size(headers.items()) > MAX_HEADERS_BYTES:
        raise WrongParameter(
            f"a worker has at most {MAX_HEADERS} headers, of {MAX_HEADERS_BYTES} bytes together",
            param="headers",
        )
    return tuple(sorted(headers.items()))


def load_of(fields: Mapping[str, Any]) -> str:
    """Return the options for loading the model, as JSON; raise `Unparseable` or `WrongParameter`."""
    rows = _object(fields, "load")
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


def template_of(fields: Mapping[str, Any]) -> Template:
    """Return the template that turns a chat into one text for the worker; raise `Unparseable` or `WrongParameter`."""
    name = text_of(fields, "template")
    for template in TEMPLATES:
        if template == name:
            return template
    known_names = ", ".join(filter(None, TEMPLATES))
    raise WrongParameter(
        f"the template {name[:64]!r} is unknown; known are: {known_names}", param="template"
    )


def abilities_in(fields: Mapping[str, Any]) -> int:
    """Return the model's abilities by its modalities, 0 where none are given; raise `Unparseable` or `WrongParameter`."""
    inputs, outputs = (
        _words(fields, f"{direction}_modalities") for direction in ("input", "output")
    )
    return int(abilities_of(inputs, outputs))


def _words(fields: Mapping[str, Any], name: str) -> list[str]:
    values = fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list):
        raise Unparseable("Parsing error")
    for value in values:
        if value not in MODALITIES:
            raise WrongParameter(f"{name} holds {', '.join(MODALITIES)}", param=name)
    return values


def capacity_of(fields: Mapping[str, Any]) -> int:
    """Return the worker's maximum of concurrent requests, by either name; raise `Unparseable` or `WrongParameter`."""
    capacity = number_of(fields, "capacity")
    same = number_of(fields, "max_concurrency", default=capacity)
    if fields.get("capacity") is not None and same != capacity:
        raise WrongParameter(
            "capacity and max_concurrency mean the same, but differ", param="capacity"
        )
    if not 0 <= same <= MAX_CAPACITY:
        raise WrongParameter(
            f"capacity is a number of requests from 0 (unknown) to {MAX_CAPACITY}", param="capacity"
        )
    return same


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rows = fields.get(name)
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
    for item in value if isinstance(value, list) else (value,):
        if not isinstance(item, _SCALARS) or (isinstance(item, int) and abs(item) > MAX_INTEGER):
            raise WrongParameter(
                f"the option {name!r} must be a text, a number, true or false, or a list of such",
                param="load",
            )


MAX_API_CHARACTERS = 2_048

SCHEMES: Mapping[str, tuple[str, str]] = {
    "http": ("openai_http", "http"),
    "https": ("openai_http", "https"),
    "tgi+http": ("tgi_http", "http"),
    "tgi+https": ("tgi_http", "https"),
    "llamastack+http": ("llama_stack_http", "http"),
    "llamastack+https": ("llama_stack_http", "https"),
    "grpc+localai": ("localai_grpc", "grpc"),
    "grpc+remotellm": ("remotellm_grpc", "grpc"),
}
"""URL scheme of `api` → dialect, and the scheme in the URL that the dialect gets."""

# Another node is reached through its record, never registered as a worker.
_OFFERED = tuple(name for name in dialects.NAMES if name != "peer")
_TYPES = {int(kind): kind for kind in ModelType}


def read_project(fields: Mapping[str, Any], guard: SsrfGuard) -> tuple[str, Sequence[Worker]]:
    """Return a project with its whole list of models; raise `Unparseable` or `WrongParameter`."""
    project = project_of(fields)
    rows = fields.get("models") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Unparseable("Parsing error")
    workers = [read_worker(project, lower_keys(row), guard) for row in rows]
    keys: set[Key] = set()
    for worker in workers:
        if worker.key in keys:
            raise WrongParameter(
                f"the model {worker.service.model!r} is listed twice; tell replicas apart by their cid or type",
                param="models",
            )
        keys.add(worker.key)
    return project, workers


def read_worker(project: str, fields: Mapping[str, Any], guard: SsrfGuard) -> Worker:
    """Return one model of a project as a worker; raise `Unparseable` or `WrongParameter`."""
    model, api, cid = model_of(fields), text_of(fields, "api"), cid_of(fields)
    if not api:
        raise WrongParameter("model api can not be empty", param="api")
    for param, name in (("project", project), ("cid", cid)):
        # Nodes tell each other these names in headers, from which HTTP strips outer spaces.
        if name != name.strip():
            raise WrongParameter(f"{param} must not begin or end with a space", param=param)
    kind = type_of(fields) or ModelType.TEXT
    scheme, checked = _checked_api(api, guard)
    dialect = _dialect(text_of(fields, "dialect"), scheme)
    abilities = abilities_in(fields) | verbatim.protocol_bit(dialect)
    worker = mark_single_endpoint(
        Worker(
            service=Service(project, model, cid, kind, _context(fields), abilities),
            api=checked,
            dialect=dialect,
            model=_name(text_of(fields, "worker_model"), "worker_model"),
            capacity=capacity_of(fields),
            load=load_of(fields),
            headers=headers_of(fields),
            template=template_of(fields),
        )
    )
    try:
        dialects.check(worker)
    except WorkerFailed as error:
        raise WrongParameter(str(error), param="load") from error
    return worker


def require_may_read(workers: Iterable[Worker], *, may_read: bool) -> None:
    """Raise `NotAllowed` or `WrongParameter` where a header's value is in a file that may not or cannot be read."""
    for worker in workers:
        if (files := worker_headers.files(worker)) and not may_read:
            # Otherwise another user of this machine could have files read that only this node may read.
            raise NotAllowed(
                f"the value of the header {files[0]!r} is in a file, which requires the control token: send "
                "'Authorization: Bearer TOKEN' with the content of control.token in the node's data directory"
            )
        try:
            worker_headers.read(worker)
        except WorkerFailed as error:
            raise WrongParameter(str(error), param="headers") from error


def project_of(fields: Mapping[str, Any]) -> str:
    """Return the name of the project; raise `Unparseable` or `WrongParameter`."""
    project = text_of(fields, "project")
    if not project:
        raise WrongParameter("project name can not be empty", param="project")
    return _name(project, "project")


def model_of(fields: Mapping[str, Any]) -> str:
    """Return the name of the model; raise `Unparseable` or `WrongParameter`."""
    model = text_of(fields, "model")
    if not model:
        raise WrongParameter("model name can not be empty", param="model")
    return _name(model, "model")


def cid_of(fields: Mapping[str, Any]) -> str:
    """Return the `cid` of the replica, `""` where none is given; raise `Unparseable` or `WrongParameter`."""
    return _name(text_of(fields, "cid"), "cid")


def type_of(fields: Mapping[str, Any]) -> ModelType | None:
    """Return the model's type, `None` where none is given; raise `Unparseable` or `WrongParameter`."""
    if fields.get("type") is None:
        return None
    kind = _TYPES.get(number_of(fields, "type"))
    if kind is None:
        known_names = ", ".join(f"{int(t)} ({t.name.lower()})" for t in ModelType)
        unknown = f"unknown model type {fields['type']}; known are: {known_names}"
        raise WrongParameter(unknown, param="type")
    return kind


def _name(text: str, param: str) -> str:
    if not is_name(text):
        raise WrongParameter(
            f"{param} must have at most {MAX_NAME_BYTES} bytes and no control characters",
            param=param,
        )
    return text


def _context(fields: Mapping[str, Any]) -> int:
    context = number_of(fields, "context")
    if not 0 <= context <= MAX_CONTEXT:
        raise WrongParameter(
            f"context is a number of tokens from 0 (unknown) to {MAX_CONTEXT}", param="context"
        )
    return context


def _checked_api(api: str, guard: SsrfGuard) -> tuple[str, str]:
    """Return the scheme, and the URL as the dialect wants it; raise `WrongParameter`."""
    if len(api) > MAX_API_CHARACTERS or not api.isprintable() or " " in api:
        raise WrongParameter(
            f"the worker's URL is not valid: at most {MAX_API_CHARACTERS} characters, without blanks",
            param="api",
        )
    try:
        url = urlsplit(api)
        port = url.port
    except ValueError as error:
        raise WrongParameter(f"the worker's URL is not valid: {error}", param="api") from error
    if url.scheme not in SCHEMES:
        raise WrongParameter(
            f"the worker's URL has no known scheme; known are: {', '.join(_spoken())}", param="api"
        )
    if "@" in url.netloc:
        raise WrongParameter("the worker's URL must not hold a user name or password", param="api")
    if not url.hostname:
        raise WrongParameter("the worker's URL is not valid: it names no host", param="api")
    scheme = SCHEMES[url.scheme][1]
    if port is None and scheme == "grpc":
        raise WrongParameter("the worker's URL must name a port", param="api")
    if port == 0:
        raise WrongParameter("the worker's URL must not name port 0", param="api")
    checked = url._replace(scheme=scheme).geturl()
    _check_place(checked, port or {"https": 443}.get(scheme, 80), guard)
    return url.scheme, checked


def _check_place(api: str, port: int, guard: SsrfGuard) -> None:
    # Parsed by the same parser as for connecting: if two parsers read one text differently, the check can be bypassed.
    try:
        host = URL(api).host or ""
    except ValueError as error:
        raise WrongParameter(f"the worker's URL is not valid: {error}", param="api") from error
    if objection := guard.objection(host, port):
        raise WrongParameter(objection, param="api")


def _spoken() -> list[str]:
    return [scheme for scheme, (dialect, _) in SCHEMES.items() if dialect in _OFFERED]


def _dialect(named: str, scheme: str) -> str:
    """Return the dialect by name if one is given (`openai` is short for `openai_http`), else by the URL's scheme."""
    dialect_name = named or SCHEMES[scheme][0]
    for name in (dialect_name, f"{dialect_name}_http", f"{dialect_name}_grpc"):
        if name in _OFFERED:
            _check_loadable(name)
            return name
    raise WrongParameter(
        f"the dialect {dialect_name[:64]!r} is unknown; known are: {', '.join(_OFFERED)}",
        param="dialect",
    )


def _check_loadable(dialect: str) -> None:
    try:
        dialects.load(dialect)
    except WorkerFailed as error:
        raise WrongParameter(str(error), param="dialect") from error
