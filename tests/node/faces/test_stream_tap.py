"""Observation of a stream as it passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.stream_tap import StreamEnd
from router.openai.sse import EVENT_ENDS, WholeEvents


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n", b"\r", b": c", b"y"])))
def test_however_a_stream_is_cut_its_bytes_keep_their_order_and_events_stay_whole(chunks):
    tap = WholeEvents()
    sent = [tap.feed(chunk) for chunk in chunks]
    assert b"".join((*sent, tap.rest)) == b"".join(chunks)
    assert all(not piece or piece.endswith(EVENT_ENDS) for piece in sent)


ENDED = b'data: {"choices":[{"finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "lacking"),
    [
        ((ENDED,), b"data: [DONE]\n\n"),
        ((ENDED, b'data: {"choices":[],"usage":{}}\n\n'), b"data: [DONE]\n\n"),
        ((ENDED.removesuffix(b"\n\n"),), b"\n\ndata: [DONE]\n\n"),
        ((ENDED, b"data: [DONE]\n\n"), b""),
        ((ENDED, b"data:[DONE]"), b""),
        ((ENDED.replace(b"\n", b"\r"), b"data: [DONE]\r\r"), b""),
        ((ENDED.replace(b"\n", b"\r") + b'data: {"error":{"message":"no"}}\r\r',), b""),
        ((ENDED, b'data: {"error":{"message":"no"}}\n\n'), b""),
        ((b'data: {"choices":[{"finish_reason":null}]}\n\n',), b""),
        ((), b""),
    ],
)
def test_a_stream_with_a_finish_reason_lacks_only_its_done(pieces, lacking):
    done = StreamEnd()
    assert b"".join(map(done.observe, pieces)) == b"".join(pieces)
    assert done.missing_end == lacking
