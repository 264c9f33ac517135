"""What is remembered of a stream: all of it or nothing, and little of what is alike."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from router.failover_recording import BLOCK, MOST_KEPT, Recording

EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n'


@given(st.lists(st.binary(max_size=3 * BLOCK), max_size=12))
def test_what_was_sent_is_all_there(sent: list[bytes]) -> None:
    recording = Recording()
    for one in sent:
        recording.add(one)
    whole = b"".join(sent)
    assert recording.whole() in (whole, None)
    assert whole.endswith(recording.last)
    assert recording.last or not whole


def test_eight_thousand_tokens_are_remembered() -> None:
    recording = Recording()
    sent = [EVENT % number for number in range(8_000)]
    for one in sent:
        recording.add(one)
    assert recording.whole() == b"".join(sent)


def test_of_what_cannot_be_made_small_nothing_is_kept() -> None:
    recording, draw = Recording(), Random(1)
    for _ in range(2 * MOST_KEPT // BLOCK):
        recording.add(draw.randbytes(BLOCK))
    assert recording.whole() is None
    assert not recording._blocks
