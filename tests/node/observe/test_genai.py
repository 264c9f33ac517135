"""Names of the semantic conventions: each one without our own prefix is in OpenTelemetry's package."""

import pkgutil
from importlib import import_module

import opentelemetry.semconv._incubating.attributes as incubating
import opentelemetry.semconv._incubating.metrics as measured
import opentelemetry.semconv.attributes as stable
from opentelemetry.semconv.schemas import Schemas

from node.observe import genai
from router.requests import Kind

NAMES = {
    value
    for name, value in vars(genai).items()
    if name.isupper() and isinstance(value, str) and "." in value
}


def known():
    for package in (incubating, measured, stable):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield from (v for v in vars(import_module(module.name)).values() if isinstance(v, str))


def test_names_are_from_the_conventions_or_have_our_prefix():
    standard = {name for name in NAMES if not name.startswith("modelvine.")}
    assert standard - {genai.VERSION, genai.SCHEMA} <= set(known())
    assert genai.FIRST_CHUNK in standard


def test_the_version_of_the_conventions_exists():
    assert genai.SCHEMA in {schema.value for schema in Schemas}


def test_an_operation_is_the_conventions_word_where_they_have_one():
    assert genai.operation_of(Kind.CHAT) == "chat"
    assert genai.operation_of(Kind.EMBEDDING) == "embeddings"
    assert genai.operation_of(Kind.SPEECH) == "audio/speech"
