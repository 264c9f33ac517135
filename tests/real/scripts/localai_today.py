"""Program that is a LocalAI backend like those written in Python, with the fields that their protocol has today.

One process, one model, one call at a time; a backend without a model fails with whatever its code runs into. It is given a port
and how it fails then, and answers with the name of its model and what else it was told. The messages are made of `FIELDS`, which
has what the tests need, and not of this project's `.proto` file.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import orjson
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_KINDS = {
    "text": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int": FieldDescriptorProto.TYPE_INT32,
    "flag": FieldDescriptorProto.TYPE_BOOL,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}
FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "HealthMessage": {},
    "ModelOptions": {
        "Model": (1, "text"),
        "ContextSize": (2, "int"),
        "ModelFile": (21, "text"),
        "Type": (49, "text"),
        "FlashAttention": (56, "text"),
        "Options": (62, "*text"),
    },
    "Message": {
        "role": (1, "text"),
        "content": (2, "text"),
        "name": (3, "text"),
        "tool_call_id": (4, "text"),
        "reasoning_content": (5, "text"),
        "tool_calls": (6, "text"),
    },
    "PredictOptions": {
        "Prompt": (1, "text"),
        "Tokens": (4, "int"),
        "StopPrompts": (13, "*text"),
        "EmbeddingTokens": (35, "*int"),
        "Embeddings": (36, "text"),
        "UseTokenizerTemplate": (43, "flag"),
        "Messages": (44, "*Message"),
        "Tools": (48, "text"),
        "ToolChoice": (49, "text"),
        "Logprobs": (50, "int"),
    },
    "Reply": {
        "message": (1, "bytes"),
        "tokens": (2, "int"),
        "prompt_tokens": (3, "int"),
        "timing_prompt_processing": (4, "double"),
        "timing_token_generation": (5, "double"),
        "audio": (6, "bytes"),
        "logprobs": (7, "bytes"),
    },
    "Result": {"message": (1, "text"), "success": (2, "flag")},
    "EmbeddingResult": {"embeddings": (1, "*float")},
    "RerankRequest": {"query": (1, "text"), "documents": (2, "*text"), "top_n": (3, "int")},
    "DocumentResult": {"index": (1, "int"), "text": (2, "text"), "relevance_score": (3, "float")},
    "Usage": {"total_tokens": (1, "int"), "prompt_tokens": (2, "int")},
    "RerankResult": {"usage": (1, "Usage"), "results": (2, "*DocumentResult")},
}
"""Message → field → its number and kind; a star marks a repeated field."""

RPCS = {
    "Health": ("HealthMessage", "Reply"),
    "LoadModel": ("ModelOptions", "Result"),
    "Predict": ("PredictOptions", "Reply"),
    "PredictStream": ("PredictOptions", "Reply"),
    "Embedding": ("PredictOptions", "EmbeddingResult"),
    "Rerank": ("RerankRequest", "RerankResult"),
}
SERVICE = "backend.Backend"
WORDS = ("heard ", "it ", "through ", "the ", "grapevine")


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="backend_today.proto", package="backend", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, declaration) in fields.items():
            many, kind = declaration.startswith("*"), declaration.removeprefix("*")
            label = (
                FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
            )
            descriptor = message.field.add(name=field, number=number, label=label)
            if kind in _KINDS:
                descriptor.type = _KINDS[kind]
            else:
                descriptor.type, descriptor.type_name = (
                    FieldDescriptorProto.TYPE_MESSAGE,
                    f".backend.{kind}",
                )
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"backend.{name}")) for name in FIELDS}


MESSAGES = _classes()
"""The classes of the messages, by name."""


class Backend:
    """The model that was loaded last, if any."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def health(self, request: Any, call: grpc.ServicerContext) -> Any:
        return MESSAGES["Reply"](message=b"OK")

    def load(self, request: Any, call: grpc.ServicerContext) -> Any:
        if "missing" in request.Model:
            return MESSAGES["Result"](success=False, message=f"no weights for {request.Model}")
        self.model = request.Model
        return MESSAGES["Result"](success=True, message="Model loaded successfully")

    def _loaded(self, call: grpc.ServicerContext) -> str:
        """Return the model, or fail as a backend without one does."""
        if not hasattr(self, "model") and self._fails == "status":
            call.abort(grpc.StatusCode.FAILED_PRECONDITION, "no weights in memory")
        return str(self.model)

    def predict(self, request: Any, call: grpc.ServicerContext) -> Any:
        text = "".join(self._words(request, call))
        return MESSAGES["Reply"](message=text.encode(), tokens=len(WORDS), prompt_tokens=3)

    def predict_stream(self, request: Any, call: grpc.ServicerContext) -> Iterator[Any]:
        for count, word in enumerate(self._words(request, call), 1):
            yield MESSAGES["Reply"](message=word.encode(), tokens=count, prompt_tokens=3)

    def _words(self, request: Any, call: grpc.ServicerContext) -> tuple[str, ...]:
        reply = {
            "model": self._loaded(call),
            "tools": request.Tools,
            "choice": request.ToolChoice,
            "results": [message.tool_call_id for message in request.Messages],
        }
        return (*WORDS[: request.Tokens or None], "", orjson.dumps(reply).decode())

    def embedding(self, request: Any, call: grpc.ServicerContext) -> Any:
        text = self._loaded(call) + request.Embeddings
        numbers = [text.count(letter) / len(text) for letter in "aeinrstvwx"]
        return MESSAGES["EmbeddingResult"](embeddings=numbers)

    def rerank(self, request: Any, call: grpc.ServicerContext) -> Any:
        self._loaded(call)
        shared = [len(set(text) & set(request.query)) for text in request.documents]
        order = sorted(range(len(shared)), key=lambda at: -shared[at])[: request.top_n or None]
        rows = [
            {"index": at, "text": request.documents[at], "relevance_score": shared[at]}
            for at in order
        ]
        return MESSAGES["RerankResult"](usage={"total_tokens": 9, "prompt_tokens": 9}, results=rows)


def _handler(name: str, answer: Callable[..., Any]) -> grpc.RpcMethodHandler:
    make = (
        grpc.unary_stream_rpc_method_handler
        if name == "PredictStream"
        else grpc.unary_unary_rpc_method_handler
    )
    request_class, reply_class = (MESSAGES[message] for message in RPCS[name])
    return make(
        answer,
        request_deserializer=request_class.FromString,
        response_serializer=reply_class.SerializeToString,
    )


def main(port: str, fails: str) -> None:
    """Serve until the process is ended."""
    backend = Backend(fails)
    answers = {
        "Health": backend.health,
        "LoadModel": backend.load,
        "Predict": backend.predict,
        "PredictStream": backend.predict_stream,
        "Embedding": backend.embedding,
        "Rerank": backend.rerank,
    }
    handlers = {name: _handler(name, answer) for name, answer in answers.items()}
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    sys.stdout.write(f"ready url=grpc+localai://127.0.0.1:{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
