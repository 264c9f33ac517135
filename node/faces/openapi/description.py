"""Description of one operation of this node's API, and building blocks for its JSON schemas (JSON Schema, 2020-12)."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]

_NOTHING: Mapping[str, Any] = MappingProxyType({})

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}
EVENTS: Schema = {"description": "server-sent events"}
BYTES: Schema = {"type": "string", "contentMediaType": "application/octet-stream"}


def with_note(schema: Schema, note: str) -> Schema:
    """Return a schema with a description of its meaning."""
    return {**schema, "description": note}


def one_of(*texts: str) -> Schema:
    """Return the schema of a text that is one of these."""
    return {"type": "string", "enum": list(texts)}


def list_of(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def fields(optional: Schema = _NOTHING, /, **needed: Schema) -> Schema:
    """Return the schema of an object with required and optional fields; it may have others that are not described."""
    schema = {"type": "object", "properties": {**needed, **optional}}
    return {**schema, "required": list(needed)} if needed else schema


def done(optional: Schema = _NOTHING, /, **needed: Schema) -> Schema:
    """Return the schema of success in api-v0's shape."""
    return fields(optional, code={"const": 0}, message=TEXT, **needed)


class Allowed(StrEnum):
    """The callers that may use an operation."""

    EVERYBODY = "everybody"
    KEY = "all who may call this node; each sees only their own"
    ASK = "users and operators"
    LOOK = "viewers and operators"
    CHANGE = "operators"


@dataclass(frozen=True, slots=True)
class OperationDoc:
    """Description of an operation: its effect, parameters, body and answers.

    `runs` is set where the operation runs a model or a service: then callers may restrict the choice by headers, and every error
    of the router may occur. `request` is the body in JSON, `form` as a form; `answer` is JSON, `content` are other answers by
    content type. `needs` names the required parameters of `query`. `errors` are those besides the ones that follow from `may`,
    the parameters and the body. `refusal` is the schema of errors where it is not the common one.
    """

    summary: str
    may: Allowed
    _: KW_ONLY
    runs: bool = False
    more: str = ""
    query: Mapping[str, Schema] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    request: Schema | type[BaseModel] | None = None
    form: Schema | None = None
    optional_body: bool = False
    answer: Schema | None = None
    content: Mapping[str, Schema] = field(default_factory=dict)
    errors: tuple[type[Exception], ...] = ()
    refusal: Schema | None = None


NUMBER_OF = with_note(COUNT, "number of entries; 0: the default")
"""The parameter that limits the length of a list."""
