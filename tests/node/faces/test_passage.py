"""What is seen of a stream as it passes."""

from hypothesis import given
from hypothesis import strategies as st

from node.faces.outgoing import EVENT_ENDS
from node.faces.passage import WholeEvents


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n", b"\r", b": c", b"y"])))
def test_however_a_stream_is_cut_its_bytes_go_on_in_order_and_events_go_on_whole(chunks):
    held = WholeEvents()
    sent = [held.take(chunk) for chunk in chunks]
    assert b"".join((*sent, held.rest)) == b"".join(chunks)
    assert all(not piece or piece.endswith(EVENT_ENDS) for piece in sent)
