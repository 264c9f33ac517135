"""The recording of a stream: all of it or nothing, with similar events compressed."""

import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.failover_recording import BLOCK, LARGE, MOST_KEPT, TOGETHER, Recording

EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'

TEXTS = st.text(max_size=8).map(str.encode)
EVENTS = st.one_of(
    TEXTS.map(lambda text: EVENT % text),
    st.lists(TEXTS, min_size=1, max_size=4).map(
        lambda texts: b"".join(EVENT % text for text in texts)
    ),
    st.binary(min_size=1, max_size=3 * BLOCK),
    st.sampled_from(
        [b"\n", b"\n\n", b": ping\n\n", b'""\n\n', b"data: [DONE]\n\n", b"a" * 2 * LARGE]
    ),
)


def recorded(pieces: list[list[bytes]]) -> Recording:
    """Return a recording of pieces; groups of small pieces are kept together."""
    recording = Recording()
    for together in pieces:
        if all(len(piece) <= LARGE for piece in together):
            recording.keep(together)
        else:
            for piece in together:
                recording.add(piece)
    return recording


@given(st.lists(st.lists(EVENTS, min_size=1, max_size=TOGETHER), max_size=40))
def test_a_recording_holds_everything_that_was_sent(sent: list[list[bytes]]) -> None:
    recording = recorded(sent)
    whole = b"".join(map(b"".join, sent))
    assert recording.whole() in (whole, None)
    assert whole.endswith(recording.last)
    assert recording.last or not whole or recording.whole() is None
    assert not recording.last or recording.last.endswith(sent[-1][-1][-LARGE:])


@given(st.lists(st.text("abc ", max_size=8).map(str.encode), min_size=40, max_size=400))
def test_similar_events_take_hardly_more_room_than_their_texts(texts: list[bytes]) -> None:
    sent = [EVENT % text for text in texts]
    recording = recorded([[one] for one in sent])
    assert recording.whole() == b"".join(sent)
    kept = len(recording._blocks) + len(recording._abridged)
    # The first events are kept in full, until two differ.
    apart = next((n for n, text in enumerate(texts) if n > 2 and text != texts[n - 1]), len(texts))
    assert kept <= 9 * len(texts) + 2 * (apart + TOGETHER) * len(EVENT)


def test_a_recording_holds_eight_thousand_tokens() -> None:
    recording = Recording()
    sent = [EVENT % str(number).encode() for number in range(8_000)]
    for one in sent:
        recording.add(one)
    assert recording.whole() == b"".join(sent)
    assert len(recording._blocks) < MOST_KEPT / 4


def test_an_incompressible_stream_beyond_the_limit_is_not_kept() -> None:
    recording, draw = Recording(), Random(1)
    for _ in range(2 * MOST_KEPT // BLOCK):
        recording.add(draw.randbytes(BLOCK))
    assert recording.whole() is None
    assert not recording._blocks


def test_bursts_of_similar_events_are_compressed_without_what_they_have_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[int] = []

    real = zlib.compressobj

    class Counting:
        def __init__(self, *options: Any, **more: Any) -> None:
            self._packing = real(*options, **more)

        def compress(self, data: bytes) -> bytes:
            packed.append(len(data))
            return self._packing.compress(data)

        def flush(self) -> bytes:
            return self._packing.flush()

    sent = [EVENT % str(number).encode() for number in range(1_000)]
    burst = [b"".join(sent[at : at + 100]) for at in range(0, len(sent), 100)]
    recording = Recording()
    monkeypatch.setattr(zlib, "compressobj", Counting)
    for one in [*burst, b"data: [DONE]\n\n"]:
        recording.add(one)
    assert sum(packed) < 5 * len(sent) + 2 * LARGE < len(b"".join(sent)) / 8
