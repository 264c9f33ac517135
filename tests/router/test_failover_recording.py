"""The recording of a stream: all of it or nothing, with similar events abridged."""

import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.failover_recording import BLOCK, LARGE, MOST_KEPT, Recording

EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
SIGN = b'"error"'

TEXTS = st.text(max_size=8).map(str.encode)
EVENTS = st.one_of(
    TEXTS.map(lambda text: EVENT % text),
    st.lists(TEXTS, min_size=1, max_size=40).map(
        lambda texts: b"".join(EVENT % text for text in texts)
    ),
    st.binary(min_size=1, max_size=3 * BLOCK),
    st.sampled_from(
        [b"\n", b"\n\n", b": ping\n\n", b'""\n\n', b"data: [DONE]\n\n", EVENT % b"error", b"a" * 2 * LARGE]
    ),
)  # fmt: skip


def record(recording: Recording, sent: bytes) -> bytes:
    """Record what was sent, and return what had to be recorded in full."""
    count, size = recording.record_similar(sent)
    assert sent.count(b"\n\n", 0, size) == count
    if rest := sent[size:]:
        recording.record(rest)
    return rest


def recorded(sent: list[bytes], *signs: bytes) -> Recording:
    recording = Recording(signs)
    for chunk in sent:
        record(recording, chunk)
    return recording


def kept(recording: Recording) -> int:
    return len(recording._blocks) + len(recording._abridged)


@settings(max_examples=200)
@given(st.lists(EVENTS, max_size=40), st.booleans())
def test_a_recording_holds_everything_that_was_sent(sent: list[bytes], looks: bool) -> None:
    recording = Recording((SIGN,) if looks else ())
    rest = b""
    for chunk in sent:
        rest = record(recording, chunk) or rest
    assert recording.read_all() in (b"".join(sent), None)
    assert recording.newest.endswith(rest[-LARGE:])


@given(st.lists(st.text("abc ", max_size=8).map(str.encode), min_size=40, max_size=400))
def test_similar_events_take_hardly_more_room_than_their_texts(texts: list[bytes]) -> None:
    sent = [EVENT % text for text in texts]
    recording = recorded(sent)
    assert recording.read_all() == b"".join(sent)
    # The first events are kept in full, until two differ.
    apart = next((n for n, text in enumerate(texts) if n > 2 and text != texts[n - 1]), len(texts))
    assert kept(recording) <= 9 * len(texts) + (apart + 4) * len(EVENT)


def test_a_new_form_is_learnt_from_two_events_of_it() -> None:
    """llama.cpp writes the second of each event."""
    sent = [
        EVENT.replace(b"chunk", b"%d" % (number // 50)) % b"%d" % number for number in range(1_000)
    ]
    in_full = [
        rest for recording in [Recording()] for chunk in sent if (rest := record(recording, chunk))
    ]
    assert len(in_full) <= 2 * 20 + 1


def test_events_without_a_common_form_are_seldom_compared() -> None:
    recording = recorded([b"data: %d\n\n" % number for number in range(1_000)])
    assert recording._learns_at >= 1_000


@pytest.mark.parametrize("text", [b"error", b'a","error":"', b"x\ny", b"x\0y"])
def test_events_with_a_sign_or_an_odd_text_are_not_taken(text: bytes) -> None:
    recording = recorded([EVENT % b"%d" % number for number in range(9)], SIGN)
    before, odd, after = EVENT % b"a", EVENT % text, EVENT % b"b"
    assert recording.record_similar(odd) == (0, 0)
    assert recording.record_similar(before + odd + after, all_or_none=True) == (0, 0)
    assert recording.record_similar(before + before + odd + after) == (2, 2 * len(before))
    assert recording.record_similar(after, all_or_none=True) == (1, len(after))


def test_a_form_that_contains_a_sign_is_not_learnt() -> None:
    events = [EVENT.replace(b"choices", b"error") % b"%d" % number for number in range(9)]
    assert recorded(events, SIGN).record_similar(events[0]) == (0, 0)
    assert recorded(events).record_similar(events[0]) == (1, len(events[0]))


def test_a_recording_holds_eight_thousand_tokens() -> None:
    sent = [EVENT % str(number).encode() for number in range(8_000)]
    recording = recorded(sent)
    assert recording.read_all() == b"".join(sent)
    assert len(recording._blocks) < MOST_KEPT / 4


def test_an_incompressible_stream_beyond_the_limit_is_not_kept() -> None:
    draw = Random(1)
    recording = recorded([draw.randbytes(BLOCK) for _ in range(2 * MOST_KEPT // BLOCK)])
    assert recording.read_all() is None
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
    burst = [b"".join(sent[start : start + 100]) for start in range(0, len(sent), 100)]
    monkeypatch.setattr(zlib, "compressobj", Counting)
    recorded([*burst, b"data: [DONE]\n\n"])
    assert sum(packed) < 5 * len(sent) + 2 * LARGE < len(b"".join(sent)) / 8
