"""Laws of messages in events: they are read back as written, and their usage is counted like OpenAI's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import WorkerFailed
from router.openai.sse import Splitter
from router.openai.usage import Tokens, Usage
from router.rpc import messages as framing


@given(st.lists(st.binary(max_size=200), min_size=1), st.integers(0, 2**31), st.booleans())
def test_messages_are_read_back_as_written(messages, count, estimated):
    took = Usage(count, len(messages), estimated)
    stream = b"".join(map(framing.event, messages)) + framing.spent(took)
    read = [framing.read(event.data) for event in Splitter(max_event_bytes=1000).feed(stream)]
    assert read == [*messages, took]
    tokens = Tokens(hidden=False)
    assert tokens.passing(stream) == stream
    assert tokens.usage() == took


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"no", b'{"message":5}', b'{"message":"%%%"}', b'{"usage":{}}', b'{"message":"\xff"}']
)  # fmt: skip
def test_an_event_that_is_neither_message_nor_usage_is_a_failure(data):
    with pytest.raises(WorkerFailed):
        framing.read(data)
