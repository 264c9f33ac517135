"""The answers of TGI's specification as JSON Schema, copied by hand from it: every field that it names, and which may be null."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}


def null_or(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def listed(name: str) -> dict[str, Any]:
    return {"type": "array", "items": ref(name)}


def one_of(*names: str) -> dict[str, Any]:
    return {"oneOf": [ref(name) for name in names]}


def has(*needed: dict[str, Any], **optional: dict[str, Any]) -> dict[str, Any]:
    """Describe an object by the fields that it must have, and by those that it may."""
    required = {name: schema for fields in needed for name, schema in fields.items()}
    return {"type": "object", "required": [*required], "properties": required | optional}


_HEAD = {"id": TEXT, "created": COUNT, "model": TEXT, "system_fingerprint": TEXT}
_CALL = {"id": TEXT, "type": TEXT}
_LIKELY = null_or(ref("ChatCompletionLogprobs"))
_ENDED = {"finish_reason": ref("FinishReason"), "generated_tokens": COUNT}
_OF_A_TEXT = {"prefill": listed("PrefillToken"), "tokens": listed("Token")}
_TOP = {"type": "array", "items": listed("Token")}

DEFINITIONS: dict[str, Any] = {
    "BestOfSequence": has(
        {"generated_text": TEXT, **_ENDED, **_OF_A_TEXT}, seed=null_or(COUNT), top_tokens=_TOP
    ),
    "ChatCompletion": has(
        {**_HEAD, "choices": listed("ChatCompletionComplete"), "usage": ref("Usage")}
    ),
    "ChatCompletionChoice": has(
        {"index": COUNT, "delta": one_of("TextMessage", "ToolCallDelta")},
        finish_reason=null_or(TEXT),
        logprobs=_LIKELY,
    ),
    "ChatCompletionChunk": has({**_HEAD, "choices": listed("ChatCompletionChoice")}),
    "ChatCompletionComplete": has(
        {
            "index": COUNT,
            "message": one_of("TextMessage", "ToolCallMessage"),
            "finish_reason": TEXT,
        },
        logprobs=_LIKELY,
    ),
    "ChatCompletionLogprob": has(
        {"token": TEXT, "logprob": NUMBER, "top_logprobs": listed("ChatCompletionTopLogprob")}
    ),
    "ChatCompletionLogprobs": has({"content": listed("ChatCompletionLogprob")}),
    "ChatCompletionTopLogprob": has({"token": TEXT, "logprob": NUMBER}),
    "Chunk": has({**_HEAD, "choices": listed("CompletionComplete")}),
    "CompletionComplete": has(
        {"index": COUNT, "text": TEXT, "finish_reason": TEXT},
        logprobs=null_or({"type": "array", "items": NUMBER}),
    ),
    "CompletionFinal": has(
        {**_HEAD, "choices": listed("CompletionComplete"), "usage": ref("Usage")}
    ),
    "DeltaToolCall": has({"index": COUNT, **_CALL, "function": ref("Function")}),
    "Details": has(
        {**_ENDED, **_OF_A_TEXT},
        best_of_sequences=null_or(listed("BestOfSequence")),
        seed=null_or(COUNT),
        top_tokens=_TOP,
    ),
    "ErrorResponse": has({"error": TEXT, "error_type": TEXT}),
    "FinishReason": {"enum": ["length", "eos_token", "stop_sequence"]},
    "Function": has({"arguments": TEXT}, name=null_or(TEXT)),
    "FunctionDefinition": has({"name": TEXT, "arguments": {}}, description=null_or(TEXT)),
    "GenerateResponse": has({"generated_text": TEXT}, details=null_or(ref("Details"))),
    "Info": has(
        {"model_id": TEXT, "router": TEXT, "version": TEXT},
        {"max_concurrent_requests": COUNT, "max_best_of": COUNT, "max_stop_sequences": COUNT},
        {"max_input_tokens": COUNT, "max_total_tokens": COUNT, "max_client_batch_size": COUNT},
        {"validation_workers": COUNT},
        docker_label=null_or(TEXT),
        model_pipeline_tag=null_or(TEXT),
        model_sha=null_or(TEXT),
        sha=null_or(TEXT),
    ),
    "PrefillToken": has({"id": COUNT, "text": TEXT, "logprob": null_or(NUMBER)}),
    "SimpleToken": has({"id": COUNT, "text": TEXT, "start": COUNT, "stop": COUNT}),
    "StreamDetails": has(_ENDED, seed=null_or(COUNT)),
    "StreamResponse": has(
        {"index": COUNT, "token": ref("Token")},
        details=null_or(ref("StreamDetails")),
        generated_text=null_or(TEXT),
        top_tokens=listed("Token"),
    ),
    "TextMessage": has({"role": TEXT, "content": TEXT}),
    "Token": has({"id": COUNT, "text": TEXT, "logprob": null_or(NUMBER), "special": FLAG}),
    "TokenizeResponse": listed("SimpleToken"),
    "ToolCall": has({**_CALL, "function": ref("FunctionDefinition")}),
    "ToolCallDelta": has({"role": TEXT, "tool_calls": ref("DeltaToolCall")}),
    "ToolCallMessage": has({"role": TEXT, "tool_calls": listed("ToolCall")}),
    "Usage": has({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}),
}


def check(name: str, value: object) -> None:
    """Raise `ValidationError` unless an answer matches the type of that name."""
    _validator(name).validate(value)


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({**ref(name), "$defs": DEFINITIONS})
