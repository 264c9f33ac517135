"""Messages of a gRPC protocol: classes made at run time, from the compiled `.proto` files beside this one.

There is no generated code, which would only run with the version of protobuf that it was generated for.

An answer over HTTP carries a single message unchanged, and each message of a stream as one event.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from router.errors import WorkerFailed
from router.openai import usage
from router.openai.text_writer import refused
from router.openai.usage import Usage

CONTENT_TYPE = "application/x-protobuf"


def message_event(message: bytes) -> bytes:
    """Return one message of a stream as an event."""
    return b'data: {"message":"%b"}\n\n' % b64encode(message)


def usage_event(took: Usage) -> bytes:
    """Return the last event of a stream: its usage in OpenAI's form, by which nodes on its way count it."""
    payload: dict[str, object] = {
        "prompt_tokens": took.prompt,
        "completion_tokens": took.completion,
    }
    if took.estimated:
        payload["estimated"] = True
    return b"data: " + orjson.dumps({"usage": payload}) + b"\n\n"


def read_event(data: bytes) -> bytes | Usage:
    """Return the message of an event, or the stream's usage; raise `WorkerFailed` for anything else."""
    try:
        payload = orjson.loads(data)
        match payload:
            case {"message": str(text)}:
                return b64decode(text, validate=True)
    except ValueError as error:
        raise WorkerFailed("an event of the stream is not a message") from error
    if (took := usage.read_usage(payload)) is None:
        raise WorkerFailed("an event of the stream is not a message")
    return took


PROTOS = Path(__file__).parent / "protos"
COMPILED = PROTOS / "descriptors.binpb"
"""The `.proto` files as compiled by `scripts/protos.py`."""

LOCALAI = "backend.Backend"
REMOTELLM = "llm_rpc.api.RemoteLLM"
"""The known services, by their full names."""


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC, with the classes of its messages; `streams` says that it may have many replies."""

    name: str
    path: str
    request_class: Any
    reply_class: Any
    streams: bool


@cache
def methods_of(service: str) -> Mapping[str, Method]:
    """Return the RPCs of a service by their names; raise `KeyError` for a service that is not known."""
    described = _pool().FindServiceByName(service).methods
    return MappingProxyType({method.name: _method(service, method) for method in described})


def message_class(name: str) -> Any:
    """Return the class of a message by its full name, such as `backend.Message`."""
    return GetMessageClass(_pool().FindMessageTypeByName(name))


def parse_message(kind: Any, body: bytes) -> Any:
    """Return the parsed message without unknown fields; raise `WorkerFailed` if it is invalid."""
    try:
        message = kind.FromString(body)
    except DecodeError as error:
        raise WorkerFailed("the message is not of this protocol") from error
    message.DiscardUnknownFields()
    return message


def parse_caller_message(kind: Any, body: bytes) -> Any:
    """Return the parsed message of a caller; raise `WorkerRejected` if it is invalid, for which no worker is to blame."""
    try:
        return parse_message(kind, body)
    except WorkerFailed as error:
        raise refused(str(error), "") from error


@cache
def _pool() -> DescriptorPool:
    # A separate pool: in the default one, another package's file of the same name would conflict.
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
        pool.Add(file)
    return pool


def _method(service: str, method: MethodDescriptor) -> Method:
    return Method(
        method.name,
        f"/{service}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.server_streaming,
    )
