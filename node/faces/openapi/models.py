"""Descriptions of `/v1`: requests to models. They name the fields that a node reads or knows; all others go to the worker."""

from collections.abc import Mapping

from node.faces.errors import UnknownPath
from node.faces.openapi.description import (
    BYTES,
    COUNT,
    EVENTS,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Allowed,
    OperationDoc,
    Schema,
    fields,
    list_of,
    or_null,
    with_note,
)
from router.errors import UnknownModel
from router.openai.body import MAX_NAMES
from router.requests import Kind

TEXT_OF_WORKER: Mapping[str, Schema] = {
    "text/event-stream": with_note(EVENTS, "server-sent events, if `stream` is true"),
    "*/*": with_note(BYTES, "the worker's response"),
}
"""The content types of a worker's answer besides JSON."""

_PASSED = "The worker receives all other fields unchanged."
_NAME = with_note(TEXT, "`MODEL` or `PROJECT/MODEL`")
_OURS: Mapping[str, Schema] = {
    "models": with_note(
        {**list_of(TEXT), "maxItems": MAX_NAMES}, "fallback models, tried in order"
    ),
    "project": with_note(TEXT, "use this project only"),
    "stream": with_note(or_null(FLAG), "stream the response"),
    "service_tier": with_note(TEXT, "`flex`: run after all other requests"),
    "prompt_cache_key": with_note(TEXT, "name of the conversation, to keep it at one worker"),
}  # fmt: skip
_TEXTS = with_note({"anyOf": [TEXT, list_of({})]}, "one or more texts, or token ids")
_USAGE = {
    "usage": or_null(with_note(OBJECT, "the tokens of prompt and response")),
    "model": with_note(TEXT, "by its registered name"),
}
_CHOICES = fields(_USAGE, choices=list_of(OBJECT))
_DATA = fields(_USAGE, data=list_of(OBJECT))
_AUDIO: Mapping[str, Schema] = {"file": BYTES, "language": TEXT, "response_format": TEXT}
_ERROR_OF_ANTHROPIC = fields(
    type={"const": "error"}, error=fields(type=TEXT, message=TEXT), request_id=TEXT
)
_MODEL = fields(
    {
        "context_length": with_note(COUNT, "tokens"),
        "architecture": with_note(OBJECT, "its input and output modalities"),
    },
    id=with_note(TEXT, "the value for `model`"),
    object={"const": "model"},
    created=with_note(COUNT, "Unix time"),
    owned_by=TEXT,
    model=TEXT,
    url=with_note(TEXT, "if requested"),
    type=COUNT,
    project=TEXT,
    projects=list_of(TEXT),
    replicas=COUNT,
    nodes=COUNT,
)
_ONE_MODEL = fields(code={"const": 0}, message=TEXT, id=TEXT, created=COUNT, owned_by=TEXT)
_MAPPED = "The request becomes a chat; `x-modelvine-dropped-params` lists parameters that the worker does not support."


def _of_kind(
    summary: str,
    answer: Schema | None,
    *,
    known: Mapping[str, Schema],
    form: bool = False,
    **needed: Schema,
) -> OperationDoc:
    words = fields({**_OURS, **known}, model=_NAME, **needed)
    return OperationDoc(
        summary,
        Allowed.ASK,
        runs=True,
        more=_PASSED,
        request=words,
        form=words if form else None,
        answer=answer,
        content=TEXT_OF_WORKER,
    )


_SAMPLING: Mapping[str, Schema] = {
    "max_tokens": or_null(COUNT),
    "temperature": or_null(NUMBER),
    "top_p": or_null(NUMBER),
    "stop": {},
    "stream_options": or_null(OBJECT),
}
_VECTORS = list_of(list_of(NUMBER))
_STORED: Mapping[str, Schema] = {"store": with_note(TEXT, "the store, if `model` is missing")}

KINDS: Mapping[Kind, OperationDoc] = {
    Kind.CHAT: _of_kind(
        "Create a chat completion", _CHOICES, messages=list_of(OBJECT),
        known={**_SAMPLING, "tools": or_null(list_of(OBJECT)), "response_format": or_null(OBJECT)},
    ),
    Kind.COMPLETION: _of_kind("Create a completion", _CHOICES, prompt=_TEXTS, known=_SAMPLING),
    Kind.EMBEDDING: _of_kind(
        "Create embeddings", _DATA, input=_TEXTS, known={"encoding_format": TEXT, "dimensions": COUNT}
    ),
    Kind.IMAGE: _of_kind("Create images", _DATA, prompt=TEXT, known={"n": or_null(COUNT), "size": or_null(TEXT)}),
    Kind.IMAGE_EDIT: _of_kind("Edit an image", _DATA, form=True, prompt=TEXT, known={"image": BYTES, "mask": BYTES}),
    Kind.TRANSCRIPTION: _of_kind("Transcribe audio", OBJECT, form=True, known=_AUDIO),
    Kind.TRANSLATION: _of_kind("Translate audio to English", OBJECT, form=True, known=_AUDIO),
    Kind.SPEECH: _of_kind("Create speech", None, input=TEXT, known={"voice": {}, "response_format": TEXT}),
    Kind.RERANK: _of_kind(
        "Rank documents by relevance to a query", OBJECT, query=TEXT, documents=list_of({}),
        known={"top_n": or_null(COUNT)},
    ),
    Kind.SOUND: _of_kind("Create a sound", None, known={"model_id": with_note(TEXT, "also names the model"), "text": TEXT}),
    Kind.TOKENIZE: _of_kind("Tokenize a text", OBJECT, known={"content": TEXT, "prompt": TEXT}),
    Kind.GUTS: _of_kind("Show the inner state of a model", OBJECT, known={}),
    Kind.STORE_SET: _of_kind("Set entries of a store", OBJECT, known={**_STORED, "keys": _VECTORS, "values": list_of(TEXT)}),
    Kind.STORE_DELETE: _of_kind("Delete entries of a store", OBJECT, known={**_STORED, "keys": _VECTORS}),
    Kind.STORE_GET: _of_kind("Get entries of a store", OBJECT, known={**_STORED, "keys": _VECTORS}),
    Kind.STORE_FIND: _of_kind(
        "Find the nearest entries of a store", OBJECT, known={**_STORED, "key": list_of(NUMBER), "topk": COUNT}
    ),
}  # fmt: skip
"""The kinds of requests to models, each under its own path."""

_STORED_RESPONSE = "Returns 404, because nothing is stored."

TABLE: Mapping[str, OperationDoc] = {
    **{f"POST /v1/{kind.value}": described for kind, described in KINDS.items()},
    "POST /v2/rerank": KINDS[Kind.RERANK],
    "GET /v1/models": OperationDoc(
        "List models", Allowed.ASK,
        more="With the header `anthropic-version`, in Anthropic's format.",
        answer=fields(object={"const": "list"}, code={"const": 0}, message=TEXT, project=TEXT, data=list_of(_MODEL)),
    ),
    "GET /v1/models/{tail}": OperationDoc(
        "Show one model", Allowed.ASK, more="The name may contain slashes.", answer=_ONE_MODEL, errors=(UnknownModel,)
    ),
    "POST /v1/responses": OperationDoc(
        "Create a response, with OpenAI's Responses API", Allowed.ASK, runs=True, more=_MAPPED,
        request=fields({**_OURS, "instructions": or_null(TEXT), "tools": or_null(list_of(OBJECT))}, model=_NAME, input={}),
        answer=fields(id=TEXT, object={"const": "response"}, output=list_of(OBJECT)), content={"text/event-stream": EVENTS},
    ),
    **{
        f"{method} /v1/responses/{{tail}}": OperationDoc(
            f"{verb} a response", Allowed.ASK, more=_STORED_RESPONSE, errors=(UnknownPath,)
        )
        for method, verb in (("GET", "Show"), ("POST", "Cancel"), ("DELETE", "Delete"))
    },
    "POST /v1/messages": OperationDoc(
        "Create a message, with Anthropic's Messages API", Allowed.ASK, runs=True, more=_MAPPED,
        request=fields(
            {"system": {}, "stream": FLAG, "tools": list_of(OBJECT), "temperature": NUMBER},
            model=_NAME, messages=list_of(OBJECT), max_tokens=COUNT,
        ),
        answer=fields(id=TEXT, type={"const": "message"}, role=TEXT, content=list_of(OBJECT)),
        content={"text/event-stream": EVENTS}, refusal=_ERROR_OF_ANTHROPIC,
    ),
    "POST /v1/messages/count_tokens": OperationDoc(
        "Count the tokens of a message", Allowed.ASK, runs=True,
        more="The model's worker counts if it can tokenize; otherwise the number is an estimate.",
        request=fields({"system": {}, "tools": list_of(OBJECT)}, model=_NAME, messages=list_of(OBJECT)),
        answer=fields(input_tokens=COUNT), refusal=_ERROR_OF_ANTHROPIC,
    ),
    "POST /v1/inference/chat-completion": OperationDoc(
        "Create a chat completion, in the format of Llama Stack", Allowed.ASK, runs=True, more=_MAPPED,
        request=fields({"stream": FLAG, "sampling_params": OBJECT}, model_id=_NAME, messages=list_of(OBJECT)),
        answer=OBJECT, content={"text/event-stream": EVENTS},
    ),
}  # fmt: skip
"""Method and path → description."""
