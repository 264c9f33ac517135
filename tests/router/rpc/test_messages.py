"""Messages are built from the `.proto` files at run time, tolerate new fields, and are read back from events as written."""

import re

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from router.errors import WorkerFailed
from router.openai.sse import Splitter
from router.openai.usage import StreamUsage, Usage
from router.rpc import messages as framing
from router.rpc.messages import COMPILED, LOCALAI, PROTOS, REMOTELLM, message_class, methods_of
from scripts.protos import compiled


def test_the_compiled_descriptors_match_the_proto_files() -> None:
    shipped = FileDescriptorSet.FromString(COMPILED.read_bytes())
    assert shipped == FileDescriptorSet.FromString(compiled())
    assert [file.name for file in shipped.file] == sorted(p.name for p in PROTOS.glob("*.proto"))


@pytest.mark.parametrize(
    ("service", "file", "count"), [(LOCALAI, "backend.proto", 17), (REMOTELLM, "llm_rpc.proto", 3)]
)
def test_every_rpc_of_a_service_is_available(service: str, file: str, count: int) -> None:
    names = re.findall(r"rpc (\w+)\(", (PROTOS / file).read_text())
    assert list(methods_of(service)) == names
    assert len(names) == count


def test_only_predict_stream_streams() -> None:
    assert [m.name for m in methods_of(LOCALAI).values() if m.streams] == ["PredictStream"]
    assert methods_of(LOCALAI)["Predict"].path == "/backend.Backend/Predict"


def test_a_message_survives_serialization() -> None:
    method = methods_of(LOCALAI)["Predict"]
    sent = method.request_class(Prompt="hä", Tokens=5, StopPrompts=["a", "b"], Temperature=0.5)
    assert method.request_class.FromString(sent.SerializeToString()) == sent
    message = message_class("backend.Message")
    sent.Messages.append(message(role="user", content="ho"))
    assert method.request_class.FromString(sent.SerializeToString()).Messages[0].content == "ho"


def test_an_optional_field_can_be_left_out_and_an_unknown_one_is_ignored() -> None:
    speech = methods_of(LOCALAI)["TTS"].request_class
    assert not speech(text="x").HasField("language")
    reply = methods_of(LOCALAI)["Predict"].reply_class
    # Field 15, a string, which a newer server may send.
    newer = reply(message=b"ho").SerializeToString() + bytes([15 << 3 | 2, 3]) + b"new"
    assert reply.FromString(newer).message == b"ho"


def test_an_unknown_service_has_no_methods() -> None:
    with pytest.raises(KeyError):
        methods_of("backend.Frontend")


@given(st.lists(st.binary(max_size=200), min_size=1), st.integers(0, 2**31), st.booleans())
def test_messages_are_read_back_as_written(messages, count, estimated):
    took = Usage(count, len(messages), estimated)
    stream = b"".join(map(framing.message_event, messages)) + framing.usage_event(took)
    read = [framing.read_event(event.data) for event in Splitter(max_event_bytes=1000).feed(stream)]
    assert read == [*messages, took]
    tokens = StreamUsage(hidden=False)
    assert tokens.inspect(stream) == stream
    assert tokens.usage() == took


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"no", b'{"message":5}', b'{"message":"%%%"}', b'{"usage":{}}', b'{"message":"\xff"}']
)  # fmt: skip
def test_an_event_that_is_neither_message_nor_usage_is_a_failure(data):
    with pytest.raises(WorkerFailed):
        framing.read_event(data)
