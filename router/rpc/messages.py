"""Messages of a gRPC protocol: classes made at run time, from the compiled `.proto` files beside this one.

There is no generated code, which would only run with the version of protobuf that it was generated for.

Framing of gRPC messages in an answer over HTTP: one alone as it is; of a stream, each as one event.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
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


def event(message: bytes) -> bytes:
    """Return one message of a stream."""
    return b'data: {"message":"%b"}\n\n' % b64encode(message)


def spent(took: Usage) -> bytes:
    """Return the last event of a stream: what it took, in OpenAI's words, by which it is counted on its way."""
    told: dict[str, object] = {
        "prompt_tokens": took.prompt,
        "completion_tokens": took.completion,
    }
    if took.estimated:
        told["estimated"] = True
    return b"data: " + orjson.dumps({"usage": told}) + b"\n\n"


def read(data: bytes) -> bytes | Usage:
    """Return the message of an event, or what the stream took; raise `WorkerFailed` for neither."""
    try:
        said = orjson.loads(data)
        match said:
            case {"message": str(text)}:
                return b64decode(text, validate=True)
    except (orjson.JSONDecodeError, Base64Error) as error:
        raise WorkerFailed("an event of the stream is not a message") from error
    if (took := usage.told(said)) is None:
        raise WorkerFailed("an event of the stream is not a message")
    return took


PROTOS = Path(__file__).parent / "protos"
COMPILED = PROTOS / "descriptors.binpb"
"""What `scripts/protos.py` makes of the `.proto` files."""

LOCALAI = "backend.Backend"
REMOTELLM = "llm_rpc.api.RemoteLLM"
"""The services there are, by their full names."""


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: `asked` and `told` are the classes of its messages, `streams` says that many of the latter may come."""

    name: str
    path: str
    asked: Any
    told: Any
    streams: bool


@cache
def methods_of(service: str) -> Mapping[str, Method]:
    """Return the RPCs of a service by their names; raise `KeyError` for a service that is not known."""
    described = _pool().FindServiceByName(service).methods
    return MappingProxyType({method.name: _method(service, method) for method in described})


def message_class(name: str) -> Any:
    """Return the class of a message by its full name, such as `backend.Message`."""
    return GetMessageClass(_pool().FindMessageTypeByName(name))


def parsed(kind: Any, body: bytes) -> Any:
    """Return a message of a class without what that does not know; raise `WorkerFailed` for none."""
    try:
        message = kind.FromString(body)
    except DecodeError as error:
        raise WorkerFailed("the message is not of this protocol") from error
    message.DiscardUnknownFields()
    return message


def parsed_of_caller(kind: Any, body: bytes) -> Any:
    """Return a message that a caller sent; raise `WorkerRejected` for none: no worker is to blame for it."""
    try:
        return parsed(kind, body)
    except WorkerFailed as error:
        raise refused(str(error), "") from error


@cache
def _pool() -> DescriptorPool:
    # A pool of our own: in the one that all share, another package's file of the same name would be in the way.
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
