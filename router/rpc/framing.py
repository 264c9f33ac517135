"""Framing of gRPC messages in an answer over HTTP: one alone as it is; of a stream, each as one event."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

import orjson

from router.errors import WorkerFailed
from router.openai import usage
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
        raise WorkerFailed("an event of the stream is no message") from error
    if (took := usage.told(said)) is None:
        raise WorkerFailed("an event of the stream is no message")
    return took
