"""Laws of verbatim bodies: their header is read back as written, and an invalid header is refused."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Ability, Service
from router import dialects
from router.errors import BadRequest
from router.translate.verbatim import (
    SPOKEN,
    TGI,
    Verbatim,
    accepts,
    format_header,
    protocol_bit,
    split_body,
)

BODY = b'{"model":"m"}'
names = st.text("abcXYZ_", min_size=1, max_size=64)
words = st.builds(
    Verbatim,
    protocol=st.sampled_from(sorted(SPOKEN)),
    call=st.text("abc/Z_", min_size=1, max_size=64),
    body=st.binary(max_size=300).map(lambda said: orjson.dumps({"said": said.hex()})),
    needs=st.just("") | names,
)


@given(words)
def test_a_verbatim_header_is_read_back_as_written(said):
    assert split_body(format_header(said), BODY + said.body) == (BODY, said)


@pytest.mark.parametrize(
    "header",
    ["", "tgi_http", "tgi_http generate", "tgi_http generate x", "tgi_http generate 0", "tgi_http generate -1",
     f"tgi_http generate {len(BODY) + 3}", "tgi_http generate 99", "tgi_http ../x 3", "tgi_http generate?a=b 3",
     "tgi_http generate 3 a b", "tgi_http generate 3 a-b", "tgi_http generate ³"],
)  # fmt: skip
def test_an_invalid_verbatim_header_is_refused(header):
    with pytest.raises(BadRequest):
        split_body(header, BODY + b"abc")


@pytest.mark.parametrize("said", [b"abc", b"[]", b"[" * 300 + b"]" * 300])
def test_a_verbatim_body_that_is_no_json_is_refused_for_a_json_protocol(said):
    with pytest.raises(BadRequest):
        split_body(f"tgi_http generate {len(said)}", BODY + said)
    assert split_body(f"localai_grpc Predict {len(said)}", BODY + said)[1].body == said


def test_a_verbatim_body_of_an_unknown_protocol_is_left_out_unless_a_field_needs_it():
    assert split_body("kserve infer 3", BODY + b"abc") == (BODY, None)
    with pytest.raises(BadRequest) as refused:
        split_body("kserve infer 3 slots", BODY + b"abc")
    assert refused.value.param == "slots"


def test_every_protocol_is_a_dialect_with_a_bit_of_its_own():
    assert set(SPOKEN) < set(dialects.NAMES)
    assert len({protocol_bit(name) for name in SPOKEN}) == len(SPOKEN)
    assert protocol_bit("openai_http") == protocol_bit("peer") == 0


def test_a_record_states_the_protocols_that_its_node_passes_on():
    original = Verbatim(TGI, "generate", b"{}")
    assert accepts(original, Service("p", "m", abilities=int(Ability.TGI | Ability.TEXT_IN)))
    assert not accepts(
        original, Service("p", "m", abilities=int(Ability.LOCALAI | Ability.TEXT_IN))
    )
    assert not accepts(original, Service("p", "m"))
