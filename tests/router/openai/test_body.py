"""Laws of reading bodies: hostile bytes end in `BadRequest`, and a splice changes only the model name."""

import json
import time

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.errors import BadRequest, TooManyParts, UnsupportedContentType
from router.openai import body as bodies

JSON = "application/json"
FORM = "multipart/form-data; boundary=XX"

keys = st.one_of(
    st.sampled_from(["model", "models", 'a"model"', "mode\\l", "stream"]), st.text(max_size=8)
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["model", '"model": "x"', "\\", '\\"', "{[", "]}"]),
    st.text(max_size=12),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=6)


@given(
    objects, st.text(max_size=20), st.booleans(), st.sampled_from([None, 0, 2]), st.integers(0, 6)
)
@example({"model": "model"}, "x", True, None, 0)
@example({"a": {"model": "x"}}, "x", True, None, 1)
def test_splicing_equals_setting_the_model_and_changes_no_other_byte(
    fields: dict[str, object], new: str, ascii_only: bool, indent: int | None, place: int
) -> None:
    items = [(k, v) for k, v in fields.items() if k != "model"]
    items.insert(place, ("model", fields.get("model", "old")))
    try:
        body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
        new.encode()
    except UnicodeEncodeError:
        return
    before = json.loads(body)
    spliced = bodies.splice_model(body, new)
    if not isinstance(before["model"], str):
        assert spliced == body
        return
    assert json.loads(spliced) == {**before, "model": new}
    # Splicing the old name back gives the old bytes, up to the spelling of the name itself.
    assert bodies.splice_model(spliced, "") == bodies.splice_model(body, "")


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b'{"model":"a","model" :\t"b"}', b'{"model":"n","model" :\t"n"}'),
        (b'{"\\u006dodel":"a"}', b'{"\\u006dodel":"n"}'),
        (b'{"x":"model","\\u006dodel":"a"}', b'{"x":"model","\\u006dodel":"n"}'),
        (b'{"x":{"model":"a"},"y":["model",{"model":"a"}]}', None),
        (b'[{"model":"a"}]', None),
        (b'{"x":{"model":"a"}}', None),
        (b'{"x":[{"model":"a"}]}', None),
        (b'{"model":"a","\\u006dodel":"b"}', b'{"model":"n","\\u006dodel":"n"}'),
        (b'{"t":"\\"model\\":\\"a\\"","model":"a"}', b'{"t":"\\"model\\":\\"a\\"","model":"n"}'),
        (
            b'{"messages":[{"role":"user"}],"model":"a","stream":true}',
            b'{"messages":[{"role":"user"}],"model":"n","stream":true}',
        ),
        (b'{"model":null}', None),
        (b'{"model":{"model":"a"}}', None),
        (b'{"a":[1],"model":"a","b":{"c":[]}}', b'{"a":[1],"model":"n","b":{"c":[]}}'),
    ],
)
def test_only_top_level_models_are_replaced_however_they_are_spelt(
    body: bytes, spliced: bytes | None
) -> None:
    assert bodies.splice_model(body, "n") == (body if spliced is None else spliced)


@given(
    objects,
    st.sets(st.sampled_from(["model", "models", "stream", "a"])),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_leaving_out_fields_equals_deleting_them(
    fields: dict[str, object], names: set[str], ascii_only: bool, indent: int | None
) -> None:
    try:
        body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    remaining = bodies.without_fields(body, names)
    before = json.loads(body)
    assert json.loads(remaining) == {k: v for k, v in before.items() if k not in names}
    if names.isdisjoint(before):
        assert remaining == body


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"project":"p","a": 1e2 ,"b":1.50}', b'{"a": 1e2 ,"b":1.50}'),
        (b'{"a": 1e2 , "project" : "p"}', b'{"a": 1e2 }'),
        (b'{"project": "p" }', b"{}"),
        (b' { "models":["a",{"project":"]"}] ,\n "a":"\\u00e9"} ', b' { "a":"\\u00e9"} '),
        (b'{"a":1,"project":null,"models":{}}', b'{"a":1}'),
        (b'{"project":-1.5e3,"a":1,"project":true}', b'{"a":1}'),
        (b'{"\\u0070roject":"p","a":"\\u0070roject"}', b'{"a":"\\u0070roject"}'),
        (b'{"a":{"project":1},"b":["project"],"c":"\\"project\\":1"}', None),
    ],
)
def test_fields_for_nodes_are_left_out_and_every_other_byte_stays(
    body: bytes, left: bytes | None
) -> None:
    assert bodies.without_node_fields(body, JSON) == (body if left is None else left)


def test_a_field_for_nodes_is_cut_quickly_from_a_body_of_half_a_million_values() -> None:
    body = b'{"a":[%b],"project":"p","b":1.50}' % b",".join([b'""'] * 500_000)
    before = time.process_time()
    remaining = bodies.without_node_fields(body, JSON)
    assert time.process_time() - before < 1.0
    assert remaining.endswith(b',"b":1.50}')


@given(
    objects,
    st.sampled_from([None, "project", "models"]),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_a_body_is_plain_if_workers_get_it_unchanged(fields, ours, indent, escapes) -> None:
    all_fields = {**fields, "model": "m", "stream": False, **({ours: None} if ours else {})}
    try:
        body = json.dumps(all_fields, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:
        return
    if escapes and ours:
        body = body.replace(
            b'"%b"' % ours.encode(), b'"\\u00%02x%b"' % (ord(ours[0]), ours[1:].encode())
        )
    try:
        parsed = bodies.read(body, JSON)
    except BadRequest:
        return
    assert parsed.plain == (bodies.without_node_fields(body, JSON) == body)


def test_a_form_is_sent_without_fields_for_nodes() -> None:
    part = b'--XX\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    kept = [part % pair for pair in ((b"model", b"m"), (b"prompt", b"my project"))]
    body = b"".join([kept[0], part % (b"project", b"p"), kept[1], b"--XX--\r\n"])
    assert bodies.without_node_fields(body, FORM) == b"".join([*kept, b"--XX--\r\n"])


def test_a_json_body_gives_model_stream_and_other_fields() -> None:
    parsed = bodies.read(
        b'{"model":"P/m","stream":true,"project":"P"}', "Application/JSON; charset=utf-8"
    )
    assert (parsed.model, parsed.stream, parsed.fields["project"]) == ("P/m", True, "P")


def test_stream_null_or_missing_means_no_stream() -> None:
    assert not bodies.read(b'{"model":"m","stream":null}', JSON).stream
    assert not bodies.read(b'{"model":"m"}', JSON).stream


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"model"',
        b"{",
        b"{}",
        b'{"model":""}',
        b'{"model":1}',
        b'{"model":null}',
        b'{"model":["m"]}',
        b'{"model":"m","stream":"true"}',
        b'{"model":"m","stream":1}',
        b'{"model":"m","n":NaN}',
        b'{"model":"m","n":1e999}',
        b'{"model":"m","n":1' + b"0" * 10_000 + b"}",
        b'{"model":"m","x":"\\ud800"}',
        b'{"model":"m"}{}',
        b'{"model":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"' + b"m" * 514 + b'"}',
    ],
)
def test_a_bad_json_body_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        bodies.read(body, JSON)


@given(
    st.binary(max_size=200), st.sampled_from([JSON, FORM, "multipart/form-data", "", "text/plain"])
)
def test_no_bytes_get_further_than_bad_request(body: bytes, content_type: str) -> None:
    try:
        parsed = bodies.read(body, content_type)
    except BadRequest:
        return
    assert parsed.model


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    body = b'{"model":"m","x":[' + b"1," * 2_100_000 + b"1]}"
    began = time.process_time()
    with pytest.raises(TooManyParts):
        bodies.read(body, JSON)
    assert time.process_time() - began < 1


def test_another_content_type_is_refused_as_unsupported() -> None:
    with pytest.raises(UnsupportedContentType):
        bodies.read(b'{"model":"m"}', "text/plain")


def test_the_spliced_name_is_written_as_json() -> None:
    assert (
        orjson.loads(bodies.splice_model(b'{"model":"a"}', 'quote " and é'))["model"]
        == 'quote " and é'
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["model", "Model", "mOdEl", "\\u006dodel", "mod\\u0065l", "\\u004dodel", "a", "x"]
            ),
            st.sampled_from(['"m"', '{"model":1,"Model":2}', '["model"]', '"\\\\u006d"', "1"]),
        ),
        max_size=5,
    )
)
def test_every_json_parser_of_a_worker_finds_the_model_that_the_router_found(
    rows: list[tuple[str, str]],
) -> None:
    body = ("{" + ",".join(f'"{key}":{value}' for key, value in rows) + "}").encode()
    try:
        parsed = bodies.read(body, JSON)
    except BadRequest:
        return
    pairs: list[tuple[str, object]] = []
    json.loads(body, object_pairs_hook=lambda found: pairs.__setitem__(slice(None), found))
    # Whether a parser takes the first, the last or a name that differs in case: there is only one.
    assert [value for key, value in pairs if key.lower() == "model"] == [parsed.model]


def test_nesting_is_accepted_as_deep_as_it_can_be_serialized() -> None:
    def nested(levels: int) -> bytes:
        return b'{"model":"m","x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert orjson.dumps(bodies.read(nested(bodies.MAX_DEPTH), JSON).fields)
    with pytest.raises(BadRequest):
        bodies.read(nested(bodies.MAX_DEPTH + 10), JSON)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ('"models":["a"]', ("a",)),
        ('"models":["a","b"]', ("a", "b")),
        ('"model":"a","models":["b","p/c"]', ("a", "b", "p/c")),
        ('"model":"a","models":["b","a","b"]', ("a", "b")),
        ('"model":null,"models":["a","b"]', ("a", "b")),
    ],
)
def test_a_body_may_list_models_and_is_rewritten_with_the_first(
    said: str, names: tuple[str, ...]
) -> None:
    body = b'{"x":[1.5,{"models":["not","these"]}],%b,"stream":true}' % said.encode()
    parsed = bodies.read(body, JSON)
    assert (parsed.model, parsed.names, parsed.stream) == (names[0], names, True)
    inner = b'"x":[1.5,{"models":["not","these"]}],'
    written = (
        b'{%b"model":"a","stream":true}' % inner
        if '"model":"a"' in said
        else b'{"model":"a",%b"stream":true}' % inner
    )
    assert bodies.with_one_model(body, parsed) == written


@pytest.mark.parametrize(
    "said", ["[]", '"a"', "{}", "[1]", '[""]', '["a",null]', json.dumps([*"abcdefghi"])]
)
def test_a_list_of_models_that_is_long_or_has_other_than_names_is_refused(said: str) -> None:
    with pytest.raises(BadRequest) as bad:
        bodies.read(b'{"model":"m","models":%b}' % said.encode(), JSON)
    assert bad.value.param in ("model", "models")


def test_a_null_list_of_models_lists_none() -> None:
    assert bodies.read(b'{"model":"m","models":null}', JSON).names == ()


def test_another_field_may_name_the_model_where_model_is_missing() -> None:
    parsed = bodies.read(b'{"store":"a","keys":[]}', JSON, named_by="store")
    assert (parsed.model, parsed.names) == ("a", ("a",))
    written = bodies.with_one_model(b'{"store":"a","keys":[]}', parsed)
    assert written == b'{"model":"a","store":"a","keys":[]}'
    assert bodies.read(b'{"store":"a","model":"b"}', JSON, named_by="store").model == "b"
    assert bodies.read(b'{"store":"a","model":"b"}', JSON, named_by="store").names == ()
    for body in (b'{"store":""}', b'{"store":1}', b"{}", b'{"model":1,"store":"a"}'):
        with pytest.raises(BadRequest) as refused:
            bodies.read(body, JSON, named_by="store")
        assert refused.value.param == "model"
    with pytest.raises(BadRequest):
        bodies.read(b'{"store":"a"}', JSON)
