"""Messages are made at run time of what the `.proto` files say, and tolerate what newer servers add."""

import re

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from router.rpc.messages import COMPILED, LOCALAI, PROTOS, REMOTELLM, message_class, methods_of
from scripts.protos import compiled


def test_the_compiled_set_says_what_the_readable_files_say() -> None:
    shipped = FileDescriptorSet.FromString(COMPILED.read_bytes())
    assert shipped == FileDescriptorSet.FromString(compiled())
    assert [file.name for file in shipped.file] == sorted(p.name for p in PROTOS.glob("*.proto"))


@pytest.mark.parametrize(
    ("service", "file", "count"), [(LOCALAI, "backend.proto", 17), (REMOTELLM, "llm_rpc.proto", 3)]
)
def test_every_rpc_of_a_service_is_there(service: str, file: str, count: int) -> None:
    named = re.findall(r"rpc (\w+)\(", (PROTOS / file).read_text())
    assert list(methods_of(service)) == named
    assert len(named) == count


def test_one_rpc_streams() -> None:
    assert [m.name for m in methods_of(LOCALAI).values() if m.streams] == ["PredictStream"]
    assert methods_of(LOCALAI)["Predict"].path == "/backend.Backend/Predict"


def test_a_message_comes_back_as_it_was_said() -> None:
    method = methods_of(LOCALAI)["Predict"]
    said = method.asked(Prompt="hä", Tokens=5, StopPrompts=["a", "b"], Temperature=0.5)
    assert method.asked.FromString(said.SerializeToString()) == said
    message = message_class("backend.Message")
    said.Messages.append(message(role="user", content="ho"))
    assert method.asked.FromString(said.SerializeToString()).Messages[0].content == "ho"


def test_an_optional_field_can_be_left_out_and_an_unknown_one_is_passed_over() -> None:
    speech = methods_of(LOCALAI)["TTS"].asked
    assert not speech(text="x").HasField("language")
    reply = methods_of(LOCALAI)["Predict"].told
    # Field 15, which the server of tomorrow may send: a string.
    newer = reply(message=b"ho").SerializeToString() + bytes([15 << 3 | 2, 3]) + b"new"
    assert reply.FromString(newer).message == b"ho"


def test_a_service_that_is_not_known_has_no_methods() -> None:
    with pytest.raises(KeyError):
        methods_of("backend.Frontend")
