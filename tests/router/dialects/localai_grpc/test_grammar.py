"""Conversion of JSON schemas to grammars, and the schemas that have none."""

import pytest

from router.dialects.localai_grpc.request_mapping import MAX_DEPTH, MAX_RULES, grammar_of
from router.errors import WorkerUnable


def rules(schema: dict[str, object]) -> list[str]:
    """Return the rules of the schema, without the general rules of JSON."""
    return grammar_of(schema).partition("\n\nvalue ::=")[0].split("\n")


def test_an_empty_schema_allows_any_object() -> None:
    assert rules({}) == ["root ::= object"]


def test_an_object_has_its_properties_in_order() -> None:
    schema = {
        "type": "object",
        "title": "X",
        "properties": {"a b": {"type": "integer"}, "c": {"enum": ["x", 'y"', None]}},
        "required": ["a b"],
        "additionalProperties": False,
    }
    assert rules(schema) == [
        "root ::= r1",
        r'r0 ::= "\"x\"" ws | "\"y\\\"\"" ws | "null" ws',
        r'r1 ::= "{" ws "\"a b\"" ws ":" ws integer "," ws "\"c\"" ws ":" ws r0 "}" ws',
    ]


def test_lists_and_alternatives_become_rules() -> None:
    schema = {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"type": ["number", "null"]}]},
    }
    assert rules(schema) == [
        "root ::= r2",
        "r0 ::= number | null",
        "r1 ::= string | r0",
        'r2 ::= "[" ws ( r1 ( "," ws r1 )* )? "]" ws',
    ]


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "string", "pattern": "a+"}, "pattern"),
        ({"$ref": "#/x"}, "ref"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "additionalProperties"),
        ({"type": "object", "required": ["a"]}, "required"),
        ({"type": "array", "minItems": 2}, "minItems"),
        ({"oneOf": [{"type": "string"}]}, "oneOf"),
        ({"type": "integer", "minimum": 1}, "minimum"),
        ({"properties": {"a": 5}, "type": "object"}, "shape"),
        ({"type": 5}, "type"),
    ],
)
def test_a_keyword_that_a_grammar_cannot_express_is_refused_by_name(
    schema: dict[str, object], what: str
) -> None:
    with pytest.raises(WorkerUnable, match=what) as refused:
        grammar_of(schema)
    assert refused.value.param == "response_format"


def test_a_schema_that_is_too_deep_or_too_large_is_refused() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "array", "items": deep}
    large = {"type": "object", "properties": {str(n): {"enum": [n]} for n in range(MAX_RULES)}}
    for schema in (deep, large):
        with pytest.raises(WorkerUnable):
            grammar_of(schema)
