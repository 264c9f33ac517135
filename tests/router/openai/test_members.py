"""Members of a JSON object and elements of an array, found by the compiled scanner: what a parser finds, or nothing."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.errors import BadRequest
from router.openai import body as bodies
from tests.router.openai.conftest import Elements, Members, in_python

PLAIN, RAW, NEVER = ("model", "stream", "n"), ("usage",), ("models", "error")
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


def agrees(members: Members, body: bytes) -> bool:
    """Return whether members were found, after checking that they are those of a parser."""
    found = members(body, PLAIN, RAW, NEVER)
    if found is None:
        return False
    for name in RAW:
        if name in found:
            found[name] = orjson.loads(found[name])
    assert found == parsed(body)
    return True


def test_the_members_of_usual_bodies_are_found(members: Members) -> None:
    for written in (orjson.dumps(USUAL), orjson.dumps(USUAL, option=orjson.OPT_INDENT_2)):
        assert agrees(members, written)
        assert agrees(members, b" \r\n\t" + written + b"\n")
    assert agrees(members, b"{}")
    assert members(b'{"a": 1}', (), (), ()) == {}
    longest = "a" * 63
    long_keys = b'{"%b": 1, "%ba": 2, "": 3}' % (longest.encode(), longest.encode())
    assert members(long_keys, (longest, ""), (), ()) == {longest: 1, "": 3}


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
def test_what_is_no_json_object_is_left_to_a_parser(members: Members, body: bytes) -> None:
    assert parsed(body) is None
    assert members(body, PLAIN, RAW, NEVER) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}', b'{"Model": "a"}', b'{"model": "a", "MODEL": "b"}', b'{"mod\\u0065l": "a"}',
        b'{"a\\u0062": 1}', b'{"model": "\\u0061"}', b'{"model": ["a"]}', b'{"model": {}}', b'{"model": 1.5}', b'{"n": -1}',
        b'{"models": []}', b'{"eRRor": null}', b'{"usage": 1, "usage": 2}', b'{"a": 1e3}', b'{"a": 1234567890123456}',
        b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_a_parser(members: Members, body: bytes) -> None:
    orjson.loads(body)
    assert members(body, PLAIN, RAW, NEVER) is None


LONG = 300
"""Bytes of a string that is read by words, by blocks, and by words again."""


@pytest.mark.parametrize("at", range(LONG))
def test_what_ends_a_long_string_is_found_anywhere(members: Members, at: int) -> None:
    def body(special: bytes) -> bytes:
        return b'{"a": "' + b"x" * at + special + b"x" * (LONG - at) + b'", "n": 1}'

    for harmless in (b"", b"\x7f", b" ", b"\\n", "é☃".encode()):
        assert agrees(members, body(harmless))
    for special in (b'"', b"\\x", b"\x00", b"\x1f", b"\xff", b"\xc3"):
        assert members(body(special), PLAIN, RAW, NEVER) is None
    assert members(body(b"")[: at + 7], PLAIN, RAW, NEVER) is None


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
    members: Members, fields: dict[str, Any], form: int
) -> None:
    agrees(members, orjson.dumps(fields, option=form))


@settings(max_examples=400)
@given(st.data())
@example(None)
def test_members_of_a_damaged_body_are_those_that_a_parser_finds(
    members: Members, data: st.DataObject | None
) -> None:
    body = bytearray(orjson.dumps(USUAL))
    if data is None:
        for end in range(len(body)):
            assert not agrees(members, bytes(body[:end]))
        return
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        what = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"}", b",", b"0", b"\\u"])
        )
        body[at : at + data.draw(st.integers(0, 3))] = what
    agrees(members, bytes(body))


def test_arguments_of_other_types_are_refused(members: Members) -> None:
    wrong: list[Any] = [
        ("{}", (), (), ()),
        (b"{}", ["a"], (), ()),
        (b"{}", ("ä",), (), ()),
        (b"{}", (1,), (), ()),
        (b"{}", ("a" * 64,), (), ()),
        (b"{}",),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="bytes"):
            members(*arguments)


def test_the_form_in_python_leaves_everything_to_a_parser() -> None:
    plain = in_python("members")
    assert plain.members(orjson.dumps(USUAL), PLAIN, RAW, NEVER) is None
    assert plain.elements(b"[]", ("role",), 9) is None


def outcome(body: bytes, raw: tuple[str, ...] | None) -> object:
    """Return what routing needs of a body, or how it is refused."""
    try:
        asked = bodies.read(body, "application/json", named_by="model_id", raw=raw)
    except BadRequest as refused:
        return str(refused), refused.status
    needed = {
        name: asked.fields.get(name) for name in ("prompt_cache_key", "service_tier", "project")
    }
    return asked.model, asked.stream, asked.names, asked.plain, needed


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
ROUTED = st.fixed_dictionaries(
    {"model": st.just("tiny") | VALUES}, optional=dict.fromkeys(OPTIONAL, VALUES)
)
BEHIND = st.sampled_from([b"", b" ", b',"model":"b"}', b',"Model":"b"}', b"\xff"])


@settings(max_examples=500)
@given(ROUTED, st.booleans(), BEHIND, st.sampled_from([(), ("messages",)]))
@example(fields={"model": "tiny", "stream": True}, ascii_only=True, behind=b"", raw=())
@example(fields={"model": "tiny", "messages": [0] * 300_000}, ascii_only=True, behind=b"", raw=())
@example(fields={"model": "tiny", "messages": [0] * 2_100_000}, ascii_only=True, behind=b"", raw=())
def test_a_body_that_is_read_for_routing_alone_is_read_as_it_is_otherwise(
    members: Members, fields: dict[str, Any], ascii_only: bool, behind: bytes, raw: tuple[str, ...]
) -> None:
    written = json.dumps(fields, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    body = (written[:-1] if behind.startswith(b",") else written) + behind
    with pytest.MonkeyPatch.context() as patched:
        if str(bodies.__file__).endswith(".py"):
            patched.setattr(bodies, "members", members)
        few = outcome(body, raw)
    assert few == outcome(body, None)


ROLE = ("role",)


@given(
    st.lists(JSON | st.fixed_dictionaries({"role": JSON, "content": JSON}), max_size=5),
    st.sampled_from((0, orjson.OPT_INDENT_2)),
)
def test_elements_are_those_that_a_parser_finds(
    elements: Elements, array: list[Any], form: int
) -> None:
    found = elements(orjson.dumps(array, option=form), ROLE, 5)
    if found is not None:
        roles = [one.get("role") if isinstance(one, dict) else None for one in array]
        assert found == [*zip(map(orjson.dumps, array), roles, strict=True)]


def test_elements_of_usual_arrays_are_found(elements: Elements) -> None:
    array: list[Any] = [
        {"role": "user", "content": 'Say "hi"\n\u2603 \x7f'},
        {"content": [{"type": "text", "n": 12}]},
        "text",
        [True, False, None, {}],
        0,
    ]
    written = [*map(orjson.dumps, array)]
    assert elements(orjson.dumps(array), ROLE, 5) == [
        (written[0], "user"),
        *((w, None) for w in written[1:]),
    ]
    assert elements(orjson.dumps(array), ROLE, 4) is None
    for spaced in (
        json.dumps(array, ensure_ascii=False),
        json.dumps(array, ensure_ascii=False, indent="\t\r "),
    ):
        assert elements(f" {spaced}\n".encode(), ROLE, 5) == elements(orjson.dumps(array), ROLE, 5)
    assert elements(b"[]", ROLE, 0) == elements(b"[ ]", ROLE, 0) == []


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
    elements: Elements, array: bytes
) -> None:
    assert elements(array, ROLE, 9) is None


@given(st.binary(max_size=40), st.integers(0, 60))
def test_elements_of_damaged_arrays_are_whole_or_none(
    elements: Elements, damage: bytes, at: int
) -> None:
    array = orjson.dumps([{"role": "user", "content": "a"}, {"role": "system", "n": [1, {}]}])
    damaged = (array[:at] + damage + array[at + len(damage) :]).decode(errors="ignore").encode()
    found = elements(damaged, ROLE, 9)
    if found is not None:
        assert [orjson.loads(one) for one, _ in found] == orjson.loads(damaged)


def test_other_arguments_of_elements_are_refused(elements: Elements) -> None:
    wrong: list[Any] = [
        ("[]", ROLE, 1),
        (b"[]", "role", 1),
        (b"[]", (), 1),
        (b"[]", ("a", "b"), 1),
        (b"[]", ROLE, 1.0),
        (b"[]",),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="bytes"):
            elements(*arguments)
    with pytest.raises(OverflowError):
        elements(b"[]", ROLE, 2**70)
