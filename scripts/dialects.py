"""Tables of the support of protocols' endpoints and of requests' parameters, derived from the dialects and faces.

A dialect and a face define `ENDPOINTS`; a dialect that translates texts defines `MAPPING`, and is given an example of each of
OpenAI's parameters. Nothing here depends on the name of one of them.
"""

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from itertools import groupby
from types import ModuleType

import orjson

from node import faces
from node.faces import grpc
from registry.records import Service
from router import dialects
from router.canonical.values import BESIDE
from router.errors import WorkerUnable
from router.requests import Kind, Request
from router.translate.request import MappedRequest, RequestMapping
from router.workers import Worker
from tests.seeds import SEEDS

_WORKER = Worker(Service("p", "m"), "http://127.0.0.1:1")
_NOT_YET = "not yet"
_NONE = "none"
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

BOTH: Mapping[str, object] = {
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1},
    "max_tokens": 77,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 7,
    "stop": "END",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "ann",
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "top_k": 5,
    "typical_p": 0.5,
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "response_format": _SCHEMA,
}
CHAT: Mapping[str, object] = BOTH | {
    "audio": {"voice": "x"},
    "functions": [{"name": "look"}],
    "logprobs": True,
    "max_completion_tokens": 77,
    "messages": [{"role": "user", "content": "ho"}],
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "x",
    "reasoning_effort": "low",
    "safety_identifier": "x",
    "service_tier": "flex",
    "store": True,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "tools": [_TOOL],
    "top_logprobs": 2,
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}
COMPLETION: Mapping[str, object] = BOTH | {
    "best_of": 2,
    "echo": True,
    "logprobs": 2,
    "prompt": "ho",
    "suffix": "the end",
}
EXAMPLES: Mapping[Kind, Mapping[str, object]] = {Kind.CHAT: CHAT, Kind.COMPLETION: COMPLETION}
_BESIDE: Mapping[str, Mapping[str, object]] = {
    "tool_choice": {"tools": [_TOOL]},
    "top_logprobs": {"logprobs": True},
}
"""Other parameters that a parameter needs."""

_ALSO = {"max_completion_tokens": "max_tokens"}
_PLAIN: Mapping[str, object] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "temperature": 0.25,
}


@cache
def of_dialects() -> Mapping[str, ModuleType]:
    """Return the modules of all dialects by their protocols, without that of peers."""
    return {
        _protocol(name): import_module(f"{dialects.__name__}.{name}")
        for name in dialects.NAMES
        if name != "peer"
    }


@cache
def of_faces() -> Mapping[str, ModuleType]:
    """Return the modules of all faces that define `ENDPOINTS`, by their protocols."""
    modules = {
        _protocol(module.name): import_module(f"{package.__name__}.{module.name}")
        for package in (faces, grpc)
        for module in pkgutil.iter_modules(package.__path__)
    }
    return {protocol: face for protocol, face in modules.items() if "ENDPOINTS" in vars(face)}


def endpoints(protocol: str) -> Iterable[str]:
    """Yield the table of a specification's endpoints, with their support on both sides; neighbours that are alike share a row."""
    yield "| | as a worker | as a face |"
    yield "|---|---|---|"
    worker, face = of_dialects().get(protocol), of_faces().get(protocol)
    named = SEEDS.get(protocol) or sorted({*_endpoints(worker), *_endpoints(face)})
    absent = _NOT_YET if protocol in SEEDS else _NONE

    def cells(endpoint: str) -> str:
        return f"{_cell(worker, endpoint, absent)} | {_cell(face, endpoint, absent)}"

    for text, alike in groupby(named, key=cells):
        yield f"| {', '.join(f'`{endpoint}`' for endpoint in alike)} | {text} |"


def endpoints_beyond() -> Iterable[str]:
    """Yield the same tables for protocols that are in no seed, each under its name."""
    beyond = sorted({*of_dialects(), *of_faces()} - set(SEEDS))
    if not beyond:
        yield "None yet."
    for protocol in beyond:
        yield f"**{protocol.replace('_', ' ')}**"
        yield ""
        yield from endpoints(protocol)
        yield ""


def parameters() -> Iterable[str]:
    """Yield the table of parameters, by giving each to every dialect that translates texts."""
    columns = [
        (mapping, kind)
        for module in of_dialects().values()
        if isinstance(mapping := vars(module).get("MAPPING"), RequestMapping)
        for kind in EXAMPLES
        if kind in mapping.kinds
    ]
    short = {Kind.CHAT: "chat", Kind.COMPLETION: "completion"}
    yield f"| parameter | {' | '.join(f'{mapping.name}: {short[kind]}' for mapping, kind in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name in sorted(CHAT | COMPLETION):
        cells = " | ".join(_becomes(mapping, kind, name) for mapping, kind in columns)
        yield f"| `{name}` | {cells} |"


TABLES: Mapping[str, Callable[[], Iterable[str]]] = {
    **{f"endpoints.{name}": (lambda name=name: endpoints(name)) for name in SEEDS},
    "endpoints": endpoints_beyond,
    "parameters": parameters,
}


def _protocol(name: str) -> str:
    return name.removesuffix("_http").removesuffix("_grpc")


def _endpoints(module: ModuleType | None) -> Mapping[str, str]:
    return vars(module).get("ENDPOINTS", {}) if module else {}


def _cell(module: ModuleType | None, endpoint: str, absent: str) -> str:
    return _endpoints(module).get(endpoint, "").replace("|", "\\|") if module else absent


def _becomes(mapping: RequestMapping, kind: Kind, name: str) -> str:
    if name not in EXAMPLES[kind]:
        return ""
    beside = _BESIDE.get(name, {})
    try:
        mapped = _mapped(mapping, kind, {**beside, name: EXAMPLES[kind][name]})
    except WorkerUnable:
        return "**refused**"
    if {name, _ALSO.get(name, name)} & set(mapped.dropped):
        return "dropped"
    if name in BESIDE:
        return "no effect"
    return _difference(_mapped(mapping, kind, beside), mapped) or "by the node"


def _mapped(mapping: RequestMapping, kind: Kind, fields: Mapping[str, object]) -> MappedRequest:
    """Translate a short request, with some more fields, into a worker's form."""
    body = orjson.dumps({"model": "m", **_PLAIN, **fields})
    stream = fields.get("stream") is True
    request = Request("r", kind, "m", body, "application/json", stream=stream)
    return mapping.read(request, _WORKER)[1]


def _difference(plain: MappedRequest, mapped: MappedRequest) -> str:
    """Describe in which fields of the body another request differs, or in its path or number."""
    if plain.path != mapped.path:
        return f"`/{mapped.path}`"
    if len(plain.bodies) != len(mapped.bodies):
        return f"{len(mapped.bodies)} requests"
    return ", ".join(f"`{name}`" for name in _changed(plain.bodies[0], mapped.bodies[0]))


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            yield from _changed(before, value)
        elif before != value:
            yield name
