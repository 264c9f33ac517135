"""Members of a JSON object and elements of an array, found by the compiled scanner: what a parser finds, or nothing."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.errors import BadRequest
from router.openai import body as bodies
from tests.router.openai.conftest import Scanner, in_python

PLAIN, RAW, NEVER = ("model", "stream", "n"), ("usage",), ("models", "error")
ROLE = ("role",)
USUAL: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": 'Say "hi"\n\u2603 \U0001f600'}],
    "temperature": 0.7,
    "stream": True,
    "n": 1,
    "stop": None,
    "usage": {"prompt_tokens": 3, "details": [1, -2.5, {}]},
}


def parsed(body: bytes) -> dict[str, Any] | None:
    """Return the wanted members as orjson finds them, `None` for what is no object or has a member that must not be there."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or not set(NEVER).isdisjoint(fields):
        return None
    return {name: value for name, value in fields.items() if name in PLAIN + RAW}


def found_in(scanner: Scanner, body: bytes) -> dict[str, Any] | None:
    """Return the wanted members."""
    return scanner.members(body, scanner.wanted(PLAIN, RAW, NEVER, (), None))


def agrees(scanner: Scanner, body: bytes) -> bool:
    """Return whether members were found, after checking that they are those of a parser."""
    found = found_in(scanner, body)
    if found is None:
        return False
    for name in RAW:
        if name in found:
            found[name] = orjson.loads(found[name])
    assert found == parsed(body)
    return True


def test_the_members_of_usual_bodies_are_found(scanner: Scanner) -> None:
    for written in (orjson.dumps(USUAL), orjson.dumps(USUAL, option=orjson.OPT_INDENT_2)):
        assert agrees(scanner, written)
        assert agrees(scanner, b" \r\n\t" + written + b"\n")
    assert agrees(scanner, b"{}")
    assert scanner.members(b'{"a": 1}', scanner.wanted((), (), (), (), None)) == {}
    longest = "a" * 63
    long_keys = b'{"%b": 1, "%ba": 2, "": 3}' % (longest.encode(), longest.encode())
    wanted = scanner.wanted((longest, ""), (), (), (), None)
    assert scanner.members(long_keys, wanted) == {longest: 1, "": 3}


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"[]", b"7", b"null", b"{", b"}", b'{"model"', b'{"model":', b'{"model": "a"', b'{"model": "a"}}',
        b'{"model": "a"} {}', b'{"model": "a",}', b'{,"model": "a"}', b'{"model" "a"}', b'{model: "a"}', b"{'model': 'a'}",
        b'{"model": "a" "b"}', b'{"a": [1,]}', b'{"a": [1 2]}', b'{"a": [}', b'{"a": {]}', b'{"a": {"b"}}', b'{"a": t}',
        b'{"a": nul', b'{"a": NaN}', b'{"a": 01}', b'{"a": 1.}', b'{"a": .5}', b'{"a": -}', b'{"a": +1}', b'{"a": 0x1}',
        b'{"a": "\x01"}', b'{"a": "\n"}', b'{"a": "\\x"}', b'{"a": "\\u12"}', b'{"a": "\\u12g4"}', b'{"a": "\\', b'{"a": "\\"}',
        b'{"a": "\\ud800"}', b'{"a": "\\udc00"}', b'{"a": "\\ud800\\u0041"}', b'{"a": "\xff"}', b'{"a": "\xc3"}',
        b'{"a": "\xed\xa0\x80"}', b'\xef\xbb\xbf{"model": "a"}', b'{"\xff": 1}', b'{"a": ["\xe2\x98"]}',
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_left_to_a_parser(scanner: Scanner, body: bytes) -> None:
    assert parsed(body) is None
    assert found_in(scanner, body) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}', b'{"Model": "a"}', b'{"model": "a", "MODEL": "b"}', b'{"mod\\u0065l": "a"}',
        b'{"a\\u0062": 1}', b'{"model": "\\u0061"}', b'{"model": ["a"]}', b'{"model": {}}', b'{"model": 1.5}', b'{"n": -1}',
        b'{"models": []}', b'{"eRRor": null}', b'{"usage": 1, "usage": 2}', b'{"a": 1e3}', b'{"a": 1234567890123456}',
        b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_a_parser(scanner: Scanner, body: bytes) -> None:
    orjson.loads(body)
    assert found_in(scanner, body) is None


LONG = 300
"""Bytes of a string that is read by words, by blocks, and by words again."""


@pytest.mark.parametrize("at", range(LONG))
def test_what_ends_a_long_string_is_found_anywhere(scanner: Scanner, at: int) -> None:
    def body(special: bytes) -> bytes:
        return b'{"a": "' + b"x" * at + special + b"x" * (LONG - at) + b'", "n": 1}'

    for harmless in (b"", b"\x7f", b" ", b"\\n", "é☃".encode()):
        assert agrees(scanner, body(harmless))
    for special in (b'"', b"\\x", b"\x00", b"\x1f", b"\xff", b"\xc3"):
        assert found_in(scanner, body(special)) is None
    assert found_in(scanner, body(b"")[: at + 7]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from((*PLAIN, *RAW, *NEVER, "a", "Stream")) | st.text(max_size=3), JSON, max_size=8
)


@given(FIELDS, st.sampled_from((0, orjson.OPT_INDENT_2)))
def test_members_are_those_that_a_parser_finds(
    scanner: Scanner, fields: dict[str, Any], form: int
) -> None:
    agrees(scanner, orjson.dumps(fields, option=form))


@settings(max_examples=400)
@given(st.data())
@example(None)
def test_members_of_a_damaged_body_are_those_that_a_parser_finds(
    scanner: Scanner, data: st.DataObject | None
) -> None:
    body = bytearray(orjson.dumps(USUAL))
    if data is None:
        for end in range(len(body)):
            assert not agrees(scanner, bytes(body[:end]))
        return
    for _ in range(data.draw(st.integers(1, 3))):
        offset = data.draw(st.integers(0, len(body) - 1))
        replacement = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"}", b",", b"0", b"\\u"])
        )
        body[offset : offset + data.draw(st.integers(0, 3))] = replacement
    agrees(scanner, bytes(body))


def test_arguments_of_other_types_are_refused(scanner: Scanner) -> None:
    inner = scanner.wanted((), (), (), (), None)
    wrong: list[Any] = [
        (["a"], (), (), (), None),
        (("ä",), (), (), (), None),
        ((), (1,), (), (), None),
        ((), (), ("a" * 64,), (), None),
        ((), (), (), "a", inner),
        ((), (), (), ("a",), None),
        ((), (), (), ("a", "b"), inner),
        ((), (), (), (), inner),
        ((), (), (), ("a",), "b"),
        ((),),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="short ASCII names"):
            scanner.wanted(*arguments)
    for arguments in [("{}", inner), (b"{}", ()), (b"{}", None), (b"{}",)]:
        with pytest.raises(TypeError, match="bytes"):
            scanner.members(*arguments)


def test_the_form_in_python_leaves_everything_to_a_parser() -> None:
    plain = in_python("members")
    wanted = plain.wanted(PLAIN, RAW, NEVER, (), None)
    assert plain.members(orjson.dumps(USUAL), wanted) is None
    assert plain.elements(b"[]", plain.wanted(ROLE, (), (), (), None), 9) is None


@given(
    st.dictionaries(st.sampled_from((*PLAIN, *NEVER, "usage", "Usage")), JSON, max_size=5),
    st.dictionaries(st.sampled_from((*PLAIN, *RAW, *NEVER, "Model")), JSON, max_size=5) | JSON,
    st.sampled_from((0, orjson.OPT_INDENT_2)),
)
@example(fields={"n": 1}, inner={"model": "tiny", "usage": [1]}, form=0)
@example(fields={}, inner=None, form=0)
def test_members_of_an_inner_object_are_those_that_a_parser_finds(
    scanner: Scanner, fields: dict[str, Any], inner: Any, form: int
) -> None:
    within = scanner.wanted(PLAIN, RAW, NEVER, (), None)
    body = orjson.dumps({**fields, "usage": inner}, option=form)
    found = scanner.members(body, scanner.wanted(PLAIN, (), NEVER, RAW, within))
    # It is in doubt together with the whole.
    alone = found_in(scanner, orjson.dumps(inner, option=form)) if inner is not None else None
    outside = found_in(scanner, orjson.dumps({**fields, "usage": None}, option=form))
    readable = outside is not None and (inner is None or alone is not None)
    assert found == ({**(outside or {}), "usage": alone} if readable else None)


def test_an_inner_object_may_be_as_deep_as_any_other_value(scanner: Scanner) -> None:
    within = scanner.wanted((), RAW, (), (), None)
    wanted = scanner.wanted((), (), (), ("details",), within)
    for deep, found in ((62, True), (63, False)):
        nested = b"[" * deep + b"]" * deep
        body = b'{"details": {"usage": %b}}' % nested
        assert scanner.members(body, wanted) == ({"details": {"usage": nested}} if found else None)
        assert (scanner.members(b'{"other": {"usage": %b}}' % nested, wanted) == {}) is found


def outcome(body: bytes, few: object) -> object:
    """Return what routing needs of a body, or how it is refused."""
    try:
        parsed_body = bodies.read(body, "application/json", named_by="model_id", few=few)
    except BadRequest as refused:
        return str(refused), refused.status
    needed = {
        name: parsed_body.fields.get(name)
        for name in ("prompt_cache_key", "service_tier", "project")
    }
    return parsed_body.model, parsed_body.stream, parsed_body.names, parsed_body.plain, needed


VALUES = st.sampled_from(["tiny", "", True, None, 7, ["a", "b"]]) | JSON
OPTIONAL = (
    "model_id",
    "models",
    "stream",
    "prompt_cache_key",
    "service_tier",
    "project",
    "messages",
)
FIELDS_OF_CALLS = st.fixed_dictionaries(
    {"model": st.just("tiny") | VALUES}, optional=dict.fromkeys(OPTIONAL, VALUES)
)
ROUTED = ("model", "stream", "prompt_cache_key", "service_tier")
BEHIND = st.sampled_from([b"", b" ", b',"model":"b"}', b',"Model":"b"}', b"\xff"])


@settings(max_examples=500)
@given(FIELDS_OF_CALLS, st.booleans(), BEHIND, st.sampled_from([(), ("messages",)]))
@example(fields={"model": "tiny", "stream": True}, ascii_only=True, behind=b"", raw=())
@example(fields={"model": "tiny", "messages": [0] * 300_000}, ascii_only=True, behind=b"", raw=())
@example(fields={"model": "tiny", "messages": [0] * 2_100_000}, ascii_only=True, behind=b"", raw=())
def test_a_body_that_is_read_for_routing_alone_is_read_as_it_is_otherwise(
    scanner: Scanner, fields: dict[str, Any], ascii_only: bool, behind: bytes, raw: tuple[str, ...]
) -> None:
    written = json.dumps(fields, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    body = (written[:-1] if behind.startswith(b",") else written) + behind
    with pytest.MonkeyPatch.context() as patched:
        if str(bodies.__file__).endswith(".py"):
            patched.setattr(bodies, "members", scanner.members)
        few = outcome(body, scanner.wanted(ROUTED, raw, ("models", "project"), (), None))
    assert few == outcome(body, None)


def elements(scanner: Scanner, array: bytes, limit: int) -> list[tuple[bytes, Any]] | None:
    """Return the elements of an array, with their roles."""
    return scanner.elements(array, scanner.wanted(ROLE, (), (), (), None), limit)


@given(
    st.lists(JSON | st.fixed_dictionaries({"role": JSON, "content": JSON}), max_size=5),
    st.sampled_from((0, orjson.OPT_INDENT_2)),
)
def test_elements_are_those_that_a_parser_finds(
    scanner: Scanner, array: list[Any], form: int
) -> None:
    found = elements(scanner, orjson.dumps(array, option=form), 5)
    if found is not None:
        roles = [element.get("role") if isinstance(element, dict) else None for element in array]
        assert found == [*zip(map(orjson.dumps, array), roles, strict=True)]


def test_elements_of_usual_arrays_are_found(scanner: Scanner) -> None:
    array: list[Any] = [
        {"role": "user", "content": 'Say "hi"\n\u2603 \x7f'},
        {"content": [{"type": "text", "n": 12}]},
        "text",
        [True, False, None, {}],
        0,
    ]
    written = [*map(orjson.dumps, array)]
    assert elements(scanner, orjson.dumps(array), 5) == [
        (written[0], "user"),
        *((w, None) for w in written[1:]),
    ]
    assert elements(scanner, orjson.dumps(array), 4) is None
    for spaced in (
        json.dumps(array, ensure_ascii=False),
        json.dumps(array, ensure_ascii=False, indent="\t\r "),
    ):
        assert elements(scanner, f" {spaced}\n".encode(), 5) == elements(
            scanner, orjson.dumps(array), 5
        )
    assert elements(scanner, b"[]", 0) == elements(scanner, b"[ ]", 0) == []


@pytest.mark.parametrize(
    "array",
    [
        b"", b"[", b"]", b"{}", b"null", b'"a"', b"[1", b"[1,]", b"[,1]", b"[1 2]", b"[1]]", b"[1],", b"[01]", b"[nul]", b'["a]',
        b'[{"role"}]', b'[{"role":}]', b'[{"role":"a"]', b'[{"role":"\xff"}]', b"[" * 70 + b"]" * 70,
        # What orjson writes otherwise, and what is left to a parser.
        b"[-1]", b"[1.5]", b"[1e3]", b'["\\/"]', b'["\\u00e9"]',
        b'["\\u0001"]', b'[{"role":"a","role":"b"}]', b'[{"Role":"a"}]', b'[{"role":["a"]}]', b'[{"r\\u006fle":"a"}]',
    ],
)  # fmt: skip
def test_what_is_no_array_in_its_shortest_form_is_left_to_a_parser(
    scanner: Scanner, array: bytes
) -> None:
    assert elements(scanner, array, 9) is None


@given(st.binary(max_size=40), st.integers(0, 60))
def test_elements_of_damaged_arrays_are_whole_or_none(
    scanner: Scanner, damage: bytes, at: int
) -> None:
    array = orjson.dumps([{"role": "user", "content": "a"}, {"role": "system", "n": [1, {}]}])
    damaged = (array[:at] + damage + array[at + len(damage) :]).decode(errors="ignore").encode()
    found = elements(scanner, damaged, 9)
    if found is not None:
        assert [orjson.loads(element) for element, _ in found] == orjson.loads(damaged)


def test_other_arguments_of_elements_are_refused(scanner: Scanner) -> None:
    role = scanner.wanted(ROLE, (), (), (), None)
    wrong: list[Any] = [
        ("[]", role, 1),
        (b"[]", ROLE, 1),
        (b"[]", scanner.wanted((), (), (), (), None), 1),
        (b"[]", scanner.wanted(("a", "b"), (), (), (), None), 1),
        (b"[]", role, 1.0),
        (b"[]",),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="bytes"):
            scanner.elements(*arguments)
    with pytest.raises(OverflowError):
        scanner.elements(b"[]", role, 2**70)
