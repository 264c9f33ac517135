"""Endpoints of a worker of the OpenAI protocol, and the field names that it knows for each."""

import re
from dataclasses import replace
from functools import lru_cache

import orjson
from yarl import URL

from registry.records import Ability, ModelType
from router.canonical.tokenize import SPECIALS, TEXTS
from router.openai.body import parse_json_object
from router.requests import STORES, Kind, Request
from router.select.fitness import type_for
from router.workers import Worker

_DIALECT = "openai_http"

_BESIDE_V1 = STORES | {Kind.TOKENIZE}
"""Kinds that servers have beside `/v1`, not below it: llama.cpp and vLLM count tokens there, LocalAI has its stores there."""

_VERSION = re.compile(r"/v\d+$")
_LONGEST_FIRST = sorted((kind.value for kind in Kind), key=len, reverse=True)


@lru_cache(maxsize=4096)
def endpoint(api: str, kind: Kind) -> URL:
    """Return the URL for a kind of request, whether `api` is a base, a base with `/v1`, or one of its endpoints.

    An address with any other path is taken to be the endpoint itself, see `is_own_path`.
    """
    url = URL(api)
    path = url.path.rstrip("/")
    ending = _known_path(path)
    if ending == kind.value or is_own_path(api):
        return url
    base = path.removesuffix(f"/{ending}") if ending else path
    versioned = _VERSION.search(base)
    if kind in _BESIDE_V1:
        base = base[: versioned.start()] if versioned else base
    elif not versioned and (not ending or Kind(ending) in _BESIDE_V1):
        base += "/v1"
    return url.with_path(f"{base}/{kind.value}", keep_query=True)


@lru_cache(maxsize=4096)
def is_own_path(api: str) -> bool:
    """Return whether an address is a single endpoint: neither a base, nor one of OpenAI's paths with others beside it."""
    path = URL(api).path.rstrip("/")
    return bool(path) and not _known_path(path) and not _VERSION.search(path)


def type_at(api: str) -> ModelType | None:
    """Return the type of the model at an address; `None` if the address does not tell, or is invalid."""
    try:
        ending = _known_path(URL(api).path.rstrip("/"))
    except ValueError:
        return None
    return type_for(Kind(ending)) if ending else None


def mark_single_endpoint(worker: Worker) -> Worker:
    """Mark a worker whose address is a single endpoint: it serves only the kinds of its type."""
    service = worker.service
    alone = worker.dialect == _DIALECT and is_own_path(worker.api)
    abilities = service.abilities & ~Ability.OWN_PATH | (Ability.OWN_PATH if alone else 0)
    if abilities == service.abilities:
        return worker
    return replace(worker, service=replace(service, abilities=int(abilities)))


def _known_path(path: str) -> str:
    return next((ending for ending in _LONGEST_FIRST if path.endswith(f"/{ending}")), "")


@lru_cache(maxsize=4096)
def other_endpoint(api: str, kind: Kind) -> URL | None:
    """Return where else a kind may be served, if anywhere: LocalAI's server and modelvine nodes count tokens below `/v1`."""
    if kind is not Kind.TOKENIZE or endpoint(api, kind) == URL(api):
        return None
    chat = endpoint(api, Kind.CHAT)
    base = chat.path.removesuffix(f"/{Kind.CHAT.value}")
    return chat.with_path(f"{base}/{kind.value}", keep_query=True)


@lru_cache(maxsize=4096)
def list_and_properties_urls(api: str) -> tuple[URL, URL]:
    """Return the URLs of the list of models and of llama.cpp's properties."""
    url = endpoint(api, Kind.CHAT)
    base, chat, _ = url.path.rpartition(f"/{Kind.CHAT.value}")
    version = base if chat else "/v1"
    root = version.rpartition("/")[0]
    return (
        url.with_path(f"{version}/models", keep_query=True),
        url.with_path(f"{root}/props", keep_query=True),
    )


@lru_cache(maxsize=4096)
def metrics_of(api: str) -> URL:
    """Return the URL of a server's metrics for Prometheus."""
    _, properties = list_and_properties_urls(api)
    return properties.with_path(
        f"{properties.path.removesuffix('/props')}/metrics", keep_query=True
    )


def with_all_field_names(request: Request) -> bytes:
    """Return the body as it came, with texts to tokenize and schemas repeated under each name that servers have for them.

    vLLM calls a text to tokenize `prompt`, llama.cpp `content`: given any other field, llama.cpp tokenizes nothing and reports
    success. The schema of a completion is llama.cpp's `json_schema`: it ignores `response_format` there.
    """
    if "json" not in request.content_type:
        return request.body
    if request.kind is Kind.TOKENIZE:
        return _to_be_cut(request.body)
    if request.kind is Kind.COMPLETION and b'"response_format"' in request.body:
        return _to_be_formed(request.body)
    return request.body


def _to_be_cut(body: bytes) -> bytes:
    fields = parse_json_object(body)
    texts = [text for name in TEXTS if (text := fields.get(name)) is not None]
    if len(texts) != 1:
        return body
    payload = {**fields, "content": texts[0], "prompt": texts[0]}
    specials = [flag for name in SPECIALS if (flag := fields.get(name)) is not None]
    if specials:
        payload |= dict.fromkeys(SPECIALS, specials[0])
    return orjson.dumps(payload)


def _to_be_formed(body: bytes) -> bytes:
    fields = parse_json_object(body)
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return orjson.dumps({"json_schema": schema, **fields})
        case {"type": "json_object"}:
            return orjson.dumps({"json_schema": {"type": "object"}, **fields})
    return body
