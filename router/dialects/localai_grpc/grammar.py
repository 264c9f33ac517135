"""Grammar made of a JSON schema. GBNF, for the part of JSON Schema that it can hold to.

What a grammar cannot hold to is refused by name: a text that only seems to keep a schema is worse than none. Objects have
all of their properties, in the order of the schema, and no other: such a text keeps a schema that asks for less too.
"""

from collections.abc import Iterator, Mapping

import orjson

from router.errors import WorkerUnable

MAX_RULES = 500
"""Rules of one grammar: each object, list and choice takes one."""

MAX_DEPTH = 32

_JSON = r"""
value ::= object | array | string | number | boolean | null
object ::= "{" ws ( string ws ":" ws value ( "," ws string ws ":" ws value )* )? "}" ws
array ::= "[" ws ( value ( "," ws value )* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" hex hex hex hex ) )* "\"" ws
hex ::= [0-9a-fA-F]
integer ::= "-"? ( "0" | [1-9] [0-9]* ) ws
number ::= "-"? ( "0" | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )? ws
boolean ::= ( "true" | "false" ) ws
null ::= "null" ws
ws ::= [ \t\n]?
"""
"""What every grammar has: JSON itself (RFC 8259), with little white space, of which some models never tire."""

_BASIC = {"string", "integer", "number", "boolean", "null"}
# They say nothing about what may stand there.
_WORDS = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "strict"}


def written(schema: Mapping[str, object]) -> str:
    """Write a schema as a grammar, `{}` as any object; raise `WorkerUnable` for what it cannot hold to."""
    if not schema:
        return f"root ::= object\n{_JSON}"
    rules = _Rules()
    root = rules.of(schema, 0)
    return "\n".join((f"root ::= {root}", *rules.lines, _JSON))


class _Rules:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def of(self, schema: object, depth: int) -> str:
        """Return the name of a rule for a schema, or what stands in its place."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            raise _cannot("a schema of this shape or depth")
        said = {name: value for name, value in schema.items() if name not in _WORDS}
        match said:
            case {"type": str(kind)} if kind in _BASIC and len(said) == 1:
                return kind
            case {"type": "array", **rest} if not set(rest) - {"items"}:
                return self._list(rest.get("items", True), depth)
            case {"type": "object", **rest}:
                return self._object(rest, depth)
        return self._rule(" | ".join(self._alternatives(said, depth)))

    def _alternatives(self, said: Mapping[str, object], depth: int) -> Iterator[str]:
        match said:
            case {"const": value, **rest} if not set(rest) - {"type"}:
                yield _literal(value)
            case {"enum": [_, *_] as values, **rest} if not set(rest) - {"type"}:
                yield from map(_literal, values)
            case {"anyOf": [_, *_] as some} if len(said) == 1:
                yield from (self.of(one, depth + 1) for one in some)
            case {"type": [_, *_] as kinds, **rest}:
                yield from (self.of({**rest, "type": kind}, depth + 1) for kind in kinds)
            case _:
                raise _cannot(", ".join(sorted(map(str, said))) or "nothing")

    def _list(self, items: object, depth: int) -> str:
        item = self.of(items, depth + 1)
        return self._rule(f'"[" ws ( {item} ( "," ws {item} )* )? "]" ws')

    def _object(self, said: Mapping[str, object], depth: int) -> str:
        unknown = set(said) - {"properties", "required", "additionalProperties"}
        properties, required = said.get("properties", {}), said.get("required", [])
        if unknown or not isinstance(properties, Mapping) or not isinstance(required, list):
            raise _cannot(", ".join(sorted(map(str, unknown))) or "such an object")
        if said.get("additionalProperties") not in (None, False, True):
            raise _cannot("additionalProperties")
        if not all(name in properties for name in required):
            raise _cannot("a required property without a schema")
        if not properties and said.get("additionalProperties") is not False:
            return "object"
        pairs = [
            f'{_literal(name)} ":" ws {self.of(one, depth + 1)}' for name, one in properties.items()
        ]
        return self._rule(f'"{{" ws {""" "," ws """.join(pairs)} "}}" ws')

    def _rule(self, body: str) -> str:
        if len(self.lines) >= MAX_RULES:
            raise _cannot(f"more than {MAX_RULES} parts")
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name} ::= {body}")
        return name


def _literal(value: object) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError as error:
        raise _cannot("such a value") from error
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" ws'


def _cannot(what: str) -> WorkerUnable:
    return WorkerUnable(
        f"LocalAI's grammars cannot hold to this schema: {what[:200]}", param="response_format"
    )
