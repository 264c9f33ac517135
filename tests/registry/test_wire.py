"""Frames: what is encoded is read back, anything else is refused as an invalid frame, and no other error is raised."""

import struct
from contextlib import suppress
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import wire
from registry.catalog import Signed
from registry.errors import InvalidFrame, InvalidSignature, LimitReached
from registry.mesh import MAX_FRAME_BYTES
from registry.records import (
    Heartbeat,
    Load,
    LoadNote,
    ModelType,
    Reach,
    Record,
    Revocation,
    Service,
    Standing,
    Version,
)
from registry.signing import Identity
from tests.strategies import IDENTITIES, counters, identities, signed_records, versions

ME, OTHER = IDENTITIES[:2]
ONE = Version(1, 1)
RECORD = Record(ME.peer, ONE, services=(Service("p", "llama"),))
PLAIN = {"version": [1, 1], "standing": "serving", "services": [["p", "llama", "", 0]]}


def sealed(body: bytes, *, kind: int = wire.RECORD, owner: Identity = ME) -> bytes:
    """Return a well-signed frame around any body: what a hostile but genuine owner may send."""
    signature = owner.sign(wire.DOMAINS[kind], body)
    return bytes((wire.VERSION, kind)) + owner.public + signature + body


def with_fields(**fields: object) -> bytes:
    return sealed(orjson.dumps(PLAIN | fields))


def read(frame: bytes) -> Record:
    signed = wire.decode(frame)
    assert isinstance(signed, Signed)
    assert signed.frame == frame
    return signed.record


# What we write, we read.


@given(signed_records())
def test_a_record_comes_back_as_it_was_with_its_exact_bytes(signed: Signed) -> None:
    assert wire.decode(signed.frame) == signed


@given(identities, versions, counters)
def test_a_heartbeat_comes_back_as_it_was(owner: Identity, version: Version, beat: int) -> None:
    note = Heartbeat(owner.peer, version, beat)
    assert wire.decode(wire.encode_heartbeat(note, owner)) == note


@given(versions, counters)
def test_a_heartbeat_is_122_bytes(version: Version, beat: int) -> None:
    assert len(wire.encode_heartbeat(Heartbeat(ME.peer, version, beat), ME)) == 122


counts = st.integers(0, wire.MAX_COUNT)
figures = st.floats(0, wire.MAX_FIGURE, width=32)
loads = st.builds(
    Load, counts, counts, counts, figures, st.none() | figures.filter(lambda s: s > wire._SHORTEST)
)
rows = st.dictionaries(
    st.integers(0, wire.MAX_SERVICES - 1), loads, min_size=1, max_size=wire.MAX_LOADS
)


@given(identities, versions, counters, rows)
def test_a_load_comes_back_as_it_was_in_16_bytes_a_row(
    owner: Identity, version: Version, beat: int, rows: dict[int, Load]
) -> None:
    note = LoadNote(owner.peer, version, beat, tuple(sorted(rows.items())))
    frame = wire.encode_load(note, owner)
    assert len(frame) == 124 + 16 * len(rows)
    assert wire.decode(frame) == note


def test_numbers_of_a_load_that_do_not_fit_are_written_as_the_greatest_that_does() -> None:
    beyond = Load(10**6, 10**6, 10**6, 1e30, 1e30)
    note = LoadNote(ME.peer, ONE, 1, ((0, beyond),))
    greatest = Load(*[wire.MAX_COUNT] * 3, wire.MAX_FIGURE, wire.MAX_FIGURE)
    assert wire.decode(wire.encode_load(note, ME)) == LoadNote(ME.peer, ONE, 1, ((0, greatest),))


@pytest.mark.parametrize(("first", "read"), [(None, False), (0.0, True), (1e-9, True)])
def test_an_unknown_latency_is_told_from_one_of_zero(first: float | None, read: bool) -> None:
    note = LoadNote(ME.peer, ONE, 1, ((0, Load(first=first)),))
    back = wire.decode(wire.encode_load(note, ME))
    assert isinstance(back, LoadNote)
    assert (back.rows[0][1].first is not None) is read


def test_a_record_of_one_model_is_a_few_hundred_bytes() -> None:
    assert len(wire.encode_record(RECORD, ME).frame) < 300


# What newer versions may add.


def test_unknown_fields_are_ignored_and_their_bytes_are_kept() -> None:
    frame = with_fields(shards=[1, {"deep": [None]}], zone="eu")
    signed = wire.decode(frame)
    assert signed == Signed(RECORD, frame)


@pytest.mark.parametrize("name", ["gpu-1", "größe", "レンダー", "x" * 64])
def test_a_record_carries_the_name_of_its_node(name: str) -> None:
    frame = wire.encode_record(replace(RECORD, name=name), ME).frame
    assert read(frame).name == name


@pytest.mark.parametrize(
    "name",
    [
        "x" * 65,
        "two words",
        "evil\x1b[2J",
        "a\nline",
        "gpu\u202e1",
        "gpu\u2066",
        "gpu\u200b",
        f"{ME.peer}",
        f"{ME.peer[:9]}",
        7,
        None,
        ["gpu"],
    ],
)
def test_an_invalid_name_is_ignored_when_it_is_read_and_refused_when_it_is_written(
    name: object,
) -> None:
    assert read(with_fields(name=name)) == RECORD
    if isinstance(name, str):
        with pytest.raises(LimitReached):
            wire.encode_record(replace(RECORD, name=name), ME)


def test_revocations_travel_and_are_written_only_where_there_are_some() -> None:
    taken_back = tuple(Revocation(f"{n:032x}", 1_800_000_000 + n) for n in range(wire.MAX_REVOKED))
    assert (
        read(wire.encode_record(replace(RECORD, revoked=taken_back), ME).frame).revoked
        == taken_back
    )
    assert b"revoked" not in wire.encode_record(RECORD, ME).frame


def test_a_record_without_a_name_is_read() -> None:
    assert read(with_fields()).name == ""


def test_unknown_columns_of_a_service_are_ignored_whatever_they_hold() -> None:
    row = ["p", "llama", "", 0, 0, None, 1.5, {"quantised": True}, ["x"]]
    assert read(with_fields(services=[row])) == RECORD


@pytest.mark.parametrize(
    ("said", "context"),
    [(4096, 4096), (2**31 - 1, 2**31 - 1), (2**31, 0), (-1, 0), (True, 0), ("4096", 0), (None, 0), (1.5, 0), ([4096], 0)],
)  # fmt: skip
def test_a_context_is_read_and_an_invalid_one_is_ignored(said: object, context: int) -> None:
    [service] = read(with_fields(services=[["p", "llama", "", 0, said]])).services
    assert service == Service("p", "llama", context=context)


@pytest.mark.parametrize(
    ("said", "abilities"),
    [(3, 3), (2**16 - 1, 2**16 - 1), (2**16, 0), (-1, 0), (True, 0), ("3", 0), (None, 0), (1.5, 0), ([3], 0)],
)  # fmt: skip
def test_abilities_are_read_and_invalid_ones_are_ignored(said: object, abilities: int) -> None:
    [service] = read(with_fields(services=[["p", "llama", "", 0, None, said, "newer"]])).services
    assert service == Service("p", "llama", abilities=abilities)


TWO_TYPES = (
    Service("p", "m"),
    Service("p", "m", type=ModelType.IMAGE, context=7),
    Service("p", "m", "a"),
)


def test_a_replica_of_several_types_is_several_services_and_has_several_cids_for_older_nodes() -> (
    None
):
    signed = wire.encode_record(replace(RECORD, services=TWO_TYPES), ME)
    assert orjson.loads(signed.frame[wire.HEADER_BYTES :])["services"] == [
        ["p", "m", "", 0],
        ["p", "m", "#1", 1, 7, 0, ""],
        ["p", "m", "a", 0],
    ]
    assert read(signed.frame).services == TWO_TYPES


@pytest.mark.parametrize(
    ("row", "cid"),
    [
        (["p", "m", "a#1", 1, 0, 0, "a"], "a"),
        (["p", "m", "a#1", 1, 0, 0, "b"], "a#1"),
        (["p", "m", "a#1", 0, 0, 0, "a"], "a#1"),
        (["p", "m", "a#1", 1, 0, 0, 7], "a#1"),
        (["p", "m", "a#1", 1], "a#1"),
    ],
)
def test_a_cid_for_older_nodes_stands_for_the_one_that_it_was_made_of(
    row: list[object], cid: str
) -> None:
    assert [s.cid for s in read(with_fields(services=[row])).services] == [cid]


@pytest.mark.parametrize(
    "rows",
    [
        [["p", "m", "", 0], ["p", "m", "", 1]],
        [["p", "m", "a", 1], ["p", "m", "a#1", 1, 0, 0, "a"]],
    ],
    ids=["as older nodes read it", "as we do"],
)
def test_a_record_that_names_a_replica_twice_is_refused(rows: list[list[object]]) -> None:
    with pytest.raises(InvalidFrame, match="twice"):
        read(with_fields(services=rows))


@pytest.mark.parametrize(
    ("said", "created"),
    [(1_763_800_000, 1_763_800_000), (2**33, 2**33), (2**33 + 1, 0), (-1, 0), (True, 0), ("1", 0), (None, 0), ([], 0)],
)  # fmt: skip
def test_the_time_of_a_registration_is_read_and_an_invalid_one_is_ignored(
    said: object, created: int
) -> None:
    [service] = read(with_fields(services=[["p", "llama", "", 0, 0, 0, 0, said]])).services
    assert (service, service.created) == (Service("p", "llama"), created)


def test_the_time_of_a_registration_travels_and_does_not_make_two_services_differ() -> None:
    services = [replace(service, created=1_763_800_000) for service in TWO_TYPES]
    signed = wire.encode_record(replace(RECORD, services=tuple(services)), ME)
    assert orjson.loads(signed.frame[wire.HEADER_BYTES :])["services"] == [
        ["p", "m", "", 0, 0, 0, 0, 1_763_800_000],
        ["p", "m", "#1", 1, 7, 0, "", 1_763_800_000],
        ["p", "m", "a", 0, 0, 0, 0, 1_763_800_000],
    ]
    found = read(signed.frame).services
    assert found == TWO_TYPES
    assert {service.created for service in found} == {1_763_800_000}


def test_a_service_is_written_without_the_columns_that_are_not_known_of_it() -> None:
    for service, row in (
        (Service("p", "m", abilities=17), ["p", "m", "", 0, 0, 17]),
        (Service("p", "m", context=8192, abilities=17), ["p", "m", "", 0, 8192, 17]),
        (Service("p", "m"), ["p", "m", "", 0]),
        (Service("p", "m", context=8192), ["p", "m", "", 0, 8192]),
    ):
        frame = wire.encode_record(replace(RECORD, services=(service,)), ME).frame
        assert orjson.loads(frame[wire.HEADER_BYTES :])["services"] == [row]


def test_a_service_of_an_unknown_type_is_skipped_and_the_others_are_kept() -> None:
    rows = [["p", "video", "", 77], ["p", "llama", "", 0], ["p", "huge", "", 10**15]]
    record = read(with_fields(services=rows))
    assert record == RECORD
    assert [record.service_at(index) for index in range(4)] == [None, *RECORD.services, None, None]


def test_a_record_with_only_the_required_fields_is_read() -> None:
    assert read(sealed(orjson.dumps(PLAIN))) == RECORD


def test_an_unprintable_agent_is_left_out() -> None:
    assert read(with_fields(agent="evil\x1b[2J")).agent == ""


# What is refused.


def test_bytes_cut_short_are_no_frame_at_any_length() -> None:
    for frame in (
        wire.encode_record(RECORD, ME).frame,
        wire.encode_heartbeat(Heartbeat(ME.peer, ONE, 1), ME),
    ):
        for length in range(len(frame)):
            with pytest.raises(InvalidFrame):
                wire.decode(frame[:length])


@given(signed_records(), st.data())
def test_a_record_with_any_bit_changed_is_refused(signed: Signed, data: st.DataObject) -> None:
    broken = bytearray(signed.frame)
    bit = data.draw(st.integers(0, len(broken) * 8 - 1))
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidFrame):
        wire.decode(bytes(broken))


@given(st.integers(0, 122 * 8 - 1))
def test_a_heartbeat_with_any_bit_changed_is_refused(bit: int) -> None:
    broken = bytearray(wire.encode_heartbeat(Heartbeat(ME.peer, ONE, 1), ME))
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidFrame):
        wire.decode(bytes(broken))


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(InvalidFrame):
        wire.decode(noise)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["version", "standing", "services", "mesh"]), JSON))
def test_a_well_signed_body_of_any_shape_is_a_record_or_refused(fields: dict[str, object]) -> None:
    try:
        body = orjson.dumps(PLAIN | fields)
    except TypeError:
        body = repr(fields).encode(errors="replace")
    with suppress(InvalidFrame):
        assert isinstance(wire.decode(sealed(body)), Signed)


@given(st.binary(max_size=60), st.sampled_from([wire.RECORD, wire.HEARTBEAT, wire.LOAD]))
def test_well_signed_noise_is_refused(body: bytes, kind: int) -> None:
    if kind == wire.HEARTBEAT and len(body) == 24:
        body += b"!"
    with pytest.raises(InvalidFrame):
        wire.decode(sealed(body, kind=kind))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": [1]},
        {"version": [1, 2, 3]},
        {"version": [1, -1]},
        {"version": [wire.MAX_COUNTER + 1, 0]},
        {"version": [True, 1]},
        {"version": ["1", "1"]},
        {"version": [1.0, 1.0]},
        {"version": None},
        {"standing": "dead"},
        {"standing": 1},
        {"services": None},
        {"services": {}},
        {"services": [[]]},
        {"services": [["p", "m", ""]]},
        {"services": ["pm"]},
        {"services": [["p", "m", "", "0"]]},
        {"services": [["p", "m", "", True]]},
        {"services": [["p", "m", "", None]]},
        {"services": [["p", "m", "", 0.5]]},
        {"services": [["p", "m", 1, 0]]},
        {"services": [["", "m", "", 0]]},
        {"services": [["p", "", "", 0]]},
        {"services": [["p", "m\n", "", 0]]},
        {"services": [["p\x00", "m", "", 0]]},
        {"services": [["p", "m", "\u202e", 0]]},
        {"services": [["p" * 257, "m", "", 0]]},
        {"services": [["p", "é" * 129, "", 0]]},
        {"services": [["p", "m", "c" * 257, 0]]},
        {"services": [["p", "m", "", 0], ["p", "m", "", 1]]},
        {"services": [["p", f"m{n}", "", 0] for n in range(wire.MAX_SERVICES + 1)]},
        {"mesh": ["/a"] * (wire.MAX_ADDRESSES + 1)},
        {"mesh": ["a" * (wire.MAX_ADDRESS_CHARACTERS + 1)]},
        {"mesh": [""]},
        {"mesh": ["/ip4/1.2.3.4/tcp/1\r\nHost: x"]},
        {"links": ["host:1"] * (wire.MAX_ADDRESSES + 1)},
        {"links": ["host:1\n"]},
        {"links": ["höst:1"]},
        {"links": [1]},
        {"certificate": "A" * (wire.MAX_CERTIFICATE_CHARACTERS + 4)},
        {"certificate": "not base64!"},
        {"certificate": "QQ"},
        {"certificate": "é"},
        {"agent": "a" * (wire.MAX_AGENT_CHARACTERS + 1)},
        {"agent": None},
        {"revoked": None},
        {"revoked": [["0f" * 16]]},
        {"revoked": [["0F" * 16, 1]]},
        {"revoked": [["0f" * 15, 1]]},
        {"revoked": [["0f" * 16, -1]]},
        {"revoked": [["0f" * 16, "1"]]},
        {"revoked": [["0f" * 16, 1]] * (wire.MAX_REVOKED + 1)},
    ],
    ids=lambda fields: orjson.dumps(fields).decode()[:50],
)
def test_a_well_signed_record_beyond_a_limit_or_of_the_wrong_shape_is_refused(
    fields: dict[str, object],
) -> None:
    with pytest.raises(InvalidFrame):
        wire.decode(with_fields(**fields))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"version":' + b"[" * 100_000,
        b'{"services":' + b'{"a":' * 100_000,
        b'{"version":[1,1],"standing":"serving","services":[["p","m","",' + b"9" * 5_000 + b"]]}",
        b'{"version":[' + b"9" * 400 + b',1],"standing":"serving","services":[]}',
        b'{"version":[NaN,1],"standing":"serving","services":[]}',
        b'{"version":[1,1],"standing":"serving","services":[["\\ud800","m","",0]]}',
        b'{"version":[1,1],"standing":"serving","services":[["\xff","m","",0]]}',
        b'{"version":[1,1],"standing":"serving","services":[]} trailing',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_hostile_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidFrame):
        wire.decode(sealed(body))


def test_names_at_the_limit_are_accepted() -> None:
    longest = "é" * (wire.MAX_NAME_BYTES // 2)
    assert read(with_fields(services=[["p", longest, "", 0]])).services[0].model == longest


@pytest.mark.parametrize("counter", range(3))
def test_a_heartbeat_with_a_counter_beyond_the_limit_is_refused(counter: int) -> None:
    values = [1, 1, 1]
    values[counter] = wire.MAX_COUNTER + 1
    with pytest.raises(InvalidFrame):
        wire.decode(sealed(struct.pack(">QQQ", *values), kind=wire.HEARTBEAT))


def load_body(*rows: tuple[float, ...], count: int | None = None) -> bytes:
    head = struct.pack(">QQQH", 1, 1, 1, len(rows) if count is None else count)
    return head + b"".join(struct.pack(">HHHHff", *row) for row in rows)


ROW = (0, 1, 2, 3, 4.0, 5.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(25),
        load_body(),
        load_body(ROW, count=0),
        load_body(ROW, count=2),
        load_body(ROW)[:-1],
        load_body(ROW) + b"!",
        load_body(ROW, count=65_535),
        load_body(*((n, 1, 0, 0, 0.0, 0.0) for n in range(wire.MAX_LOADS + 1))),
        load_body(ROW, ROW),
        load_body((1, *ROW[1:]), ROW),
        load_body((wire.MAX_SERVICES, *ROW[1:])),
        *(
            load_body((*ROW[:4], *figures))
            for figure in (float("nan"), float("inf"), float("-inf"), -1.0, 2 * wire.MAX_FIGURE)
            for figures in ((figure, 1.0), (1.0, figure))
        ),
        struct.pack(">QQQH", wire.MAX_COUNTER + 1, 1, 1, 1) + load_body(ROW)[26:],
        struct.pack(">QQQH", 1, 1, wire.MAX_COUNTER + 1, 1) + load_body(ROW)[26:],
    ],
    ids=lambda body: body.hex()[48:100] or "empty",
)
def test_a_well_signed_load_beyond_a_limit_or_of_the_wrong_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidFrame):
        wire.decode(sealed(body, kind=wire.LOAD))


@given(st.integers(0, (124 + 16) * 8 - 1))
def test_a_load_with_any_bit_changed_is_refused(bit: int) -> None:
    broken = bytearray(wire.encode_load(LoadNote(ME.peer, ONE, 1, ((3, Load(1)),)), ME))
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidFrame):
        wire.decode(bytes(broken))


def test_a_frame_cannot_be_passed_off_as_another_nodes() -> None:
    frame = wire.encode_record(RECORD, ME).frame
    forged = frame[:2] + OTHER.public + frame[2 + len(ME.public) :]
    with pytest.raises(InvalidSignature):
        wire.decode(forged)


WEAK_KEYS = [
    "00" * 32,
    "01" + "00" * 31,
    "00" * 31 + "80",
    "ec" + "ff" * 30 + "7f",
    "ee" + "ff" * 31,
]


@pytest.mark.parametrize("key", WEAK_KEYS)
def test_a_frame_made_without_a_secret_for_a_key_of_small_order_is_refused(key: str) -> None:
    # With these R and S = 0, plain Ed25519 verification accepts about half of all messages.
    for beat in range(64):
        for r in (bytes(32), b"\x01" + bytes(31)):
            body = struct.pack(">QQQ", 1, 1, beat)
            forged = bytes((wire.VERSION, wire.HEARTBEAT)) + bytes.fromhex(key) + r + bytes(32)
            with pytest.raises(InvalidSignature):
                wire.decode(forged + body)


def test_a_heartbeat_cannot_be_passed_off_as_a_record() -> None:
    body = orjson.dumps(PLAIN)
    signature = ME.sign(wire.DOMAINS[wire.HEARTBEAT], body)
    with pytest.raises(InvalidSignature):
        wire.decode(bytes((wire.VERSION, wire.RECORD)) + ME.public + signature + body)


def test_checks_go_length_then_version_then_shape_then_signature() -> None:
    unsigned = ME.public + bytes(64)
    wrong = [
        (b"\xff" * (MAX_FRAME_BYTES + 1), "bytes"),
        (b"\xff\xff" + unsigned, "version 255"),
        (b"\x01\xff" + unsigned, "kind 255"),
        (b"\x01\x01" + unsigned + b"{", "not a record"),
        (b"\x01\x02" + unsigned, "a heartbeat's body"),
        (b"\x01\x02" + unsigned + bytes(24), "signature"),
    ]
    for frame, message in wrong:
        with pytest.raises(InvalidFrame, match=message):
            wire.decode(frame)


# What we refuse to sign.


def test_the_largest_record_that_fits_can_be_read() -> None:
    full = tuple(Service("p", f"model-{n}") for n in range(wire.MAX_SERVICES))
    signed = wire.encode_record(Record(ME.peer, ONE, services=full), ME)
    assert read(signed.frame).services == full


@pytest.mark.parametrize(
    "record",
    [
        Record(ME.peer, ONE, services=tuple(Service("p", f"m{n}") for n in range(2_001))),
        Record(ME.peer, ONE, services=tuple(Service("p" * 250, f"m{n}") for n in range(1_999))),
        Record(ME.peer, ONE, services=(Service("p", "m"), Service("p", "m", context=1))),
        Record(ME.peer, ONE, services=(Service("p", "m", "#1", ModelType.TEXT), *TWO_TYPES)),
        Record(ME.peer, ONE, services=(Service("p", "m\n"),)),
        Record(ME.peer, ONE, services=(Service("", "m"),)),
        Record(ME.peer, ONE, services=(Service("p", "m" * 257),)),
        Record(ME.peer, ONE, reach=Reach(mesh=("/a",) * 17)),
        Record(ME.peer, ONE, reach=Reach(links=("not printable\n",))),
        Record(ME.peer, ONE, reach=Reach(certificate=bytes(2_000))),
        Record(ME.peer, ONE, agent="a" * 129),
        Record(ME.peer, Version(1, wire.MAX_COUNTER + 1)),
    ],
    ids=[
        "services", "bytes", "twice", "twice for older nodes", "unprintable", "unnamed", "long name", "addresses", "address",
        "certificate", "agent", "counter",
    ],
)  # fmt: skip
def test_a_record_that_other_nodes_would_refuse_is_refused_by_its_author(record: Record) -> None:
    with pytest.raises(LimitReached):
        wire.encode_record(record, ME)


@given(st.sampled_from(Standing))
def test_every_standing_travels(standing: Standing) -> None:
    signed = wire.encode_record(Record(ME.peer, ONE, standing), ME)
    assert read(signed.frame).standing is standing
