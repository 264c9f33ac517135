"""Laws of reading large JSON in steps: the value equals orjson's, and anything that is not JSON is refused."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.openai.large_json import (
    LONG_BYTES,
    MANY_PARTS,
    MAX_DEPTH,
    RARE,
    NotJson,
    count_of,
    is_large,
    loads,
    parse,
)

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text()
    | st.floats(allow_nan=False)
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)
documents = st.lists(values) | st.dictionaries(st.text(), values)


@given(documents, st.sampled_from([None, 2]))
def test_json_is_read_as_orjson_reads_it(document, indent):
    body = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0)
    assert parse(body).value == orjson.loads(body)


@given(documents, st.data())
def test_bytes_that_orjson_refuses_are_refused(document, data):
    whole = orjson.dumps(document)
    offset = data.draw(st.integers(0, len(whole)))
    other = data.draw(st.binary(max_size=2))
    body = whole[:offset] + other + whole[offset + data.draw(st.integers(0, 2)) :]
    try:
        expected = orjson.loads(body)
    except ValueError:
        with pytest.raises(NotJson):
            parse(body)
    else:
        if isinstance(expected, dict | list):
            assert parse(body).value == expected


@pytest.mark.parametrize(
    "text", ["x" * 5_000_000, "é😀\n" * 300_000, '"' * 100_000, "\\" * 100_000, "\u2028é" * 70_000]
)
def test_long_texts_are_read_completely(text):
    for body in (orjson.dumps({"a": text, text[:9000]: 1}), orjson.dumps([text])):
        assert parse(body).value == orjson.loads(body)
    escaped = b'{"a":"' + b"\\ud83d\\ude00\\u00e9" * 20_000 + b'"}'
    assert parse(escaped).value == orjson.loads(escaped)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\\ud83d"}',
        b'{"a":"\xff"}',
        b'{"a":1,}',
        b"[1,]",
        b"[01]",
        b'"x"',
        b"[1] 2",
        b'{"a":"\n"}',
        b'{"a":1 "b":2}',
        b'{"a":[}]',
    ],
)
def test_almost_valid_json_is_refused(body):
    with pytest.raises(NotJson):
        parse(body)


def test_the_depth_of_nesting_is_bounded():
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(NotJson, match="too deep"):
        parse(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


def test_every_span_of_a_requested_top_level_field_is_found():
    body = b'{"b":1, "model" : "x" ,"a":{"model":2},"model":[3],"c":4}'
    spans = parse(body, frozenset({"model"})).spans
    assert [body[span.value : span.end] for span in spans] == [b'"x"', b"[3]"]
    assert [body[span.start : span.start + 7] for span in spans] == [b'"model"'] * 2


@pytest.mark.parametrize("times", [0, 1, RARE - 1, RARE, RARE + 1, 3 * RARE])
def test_a_byte_is_counted_exactly_whether_rare_or_frequent(times):
    assert count_of(b",", b"a," * times) == count_of(b",", b",b" * times) == times


def test_a_body_that_is_long_or_has_many_parts_is_large():
    assert not is_large(b"x" * LONG_BYTES)
    assert is_large(b"x" * (LONG_BYTES + 1))
    many = b"[" + b"123," * (MANY_PARTS + 1) + b"1]"
    assert is_large(many)
    assert loads(many) == orjson.loads(many)
