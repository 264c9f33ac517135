"""Description of one operation of this node's API, and the words in which its JSON is described (JSON Schema, 2020-12)."""

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


def told(schema: Schema, words: str) -> Schema:
    """Return a schema with what it means."""
    return {**schema, "description": words}


def one_of(*words: str) -> Schema:
    """Describe a text that is one of these."""
    return {"type": "string", "enum": list(words)}


def list_of(item: Schema) -> Schema:
    """Describe a list."""
    return {"type": "array", "items": item}


def or_null(schema: Schema) -> Schema:
    """Describe what may be missing, and is null then."""
    return {"anyOf": [schema, {"type": "null"}]}


def fields(optional: Schema = _NOTHING, /, **needed: Schema) -> Schema:
    """Describe an object: fields that it always has, those that it may have, and others of which nothing is promised."""
    said = {"type": "object", "properties": {**needed, **optional}}
    return {**said, "required": list(needed)} if needed else said


def done(optional: Schema = _NOTHING, /, **needed: Schema) -> Schema:
    """Describe success in api-v0's shape."""
    return fields(optional, code={"const": 0}, message=TEXT, **needed)


class May(StrEnum):
    """Who may call an operation."""

    EVERYBODY = "everybody"
    KEY = "all who may call this node; each sees only their own"
    ASK = "users and operators"
    LOOK = "viewers and operators"
    CHANGE = "operators"


@dataclass(frozen=True, slots=True)
class OperationDoc:
    """What an operation does, takes and answers.

    `runs` says that a model or a service is run for it, so that callers may restrict which by headers, and every error of the
    router may come. `request` is the body, in JSON or in `form`; `answer` is JSON, `content` what else may come, by content
    type. `needs` names the parameters of `query` that must be there. `errors` come besides those that `may`, the parameters and
    the body bring with them. `refusal` is how errors look where not as everywhere.
    """

    summary: str
    may: May
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


NUMBER_OF = told(COUNT, "number of entries; 0: the default")
"""The parameter by which callers of lists say how long they are to be."""
