"""Descriptions of `/v1`: requests to models, and calls of services such as files, batches, fine-tuning and vector stores.

Those of models name the fields that a node reads or knows; all others go to the worker.
"""

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
from router.services.calls import CALLS, OPENAI, ServiceCall

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
    body_schema = fields({**_OURS, **known}, model=_NAME, **needed)
    return OperationDoc(
        summary,
        Allowed.ASK,
        runs=True,
        more=_PASSED,
        request=body_schema,
        form=body_schema if form else None,
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


_SUMMARIES: Mapping[str, str] = {
    "GET /v1/files": "List files",
    "POST /v1/files": "Upload a file",
    "GET /v1/files/{id}": "Get a file's metadata",
    "DELETE /v1/files/{id}": "Delete a file",
    "GET /v1/files/{id}/content": "Get a file's content",
    "POST /v1/uploads": "Create an upload in parts",
    "POST /v1/uploads/{id}/parts": "Add a part to an upload",
    "POST /v1/uploads/{id}/complete": "Complete an upload",
    "POST /v1/uploads/{id}/cancel": "Cancel an upload",
    "GET /v1/batches": "List batches",
    "POST /v1/batches": "Create a batch",
    "GET /v1/batches/{id}": "Get the progress of a batch",
    "POST /v1/batches/{id}/cancel": "Cancel a batch",
    "GET /v1/fine_tuning/jobs": "List fine-tunings",
    "POST /v1/fine_tuning/jobs": "Create a fine-tuning job",
    "GET /v1/fine_tuning/jobs/{id}": "Get the progress of a fine-tuning job",
    "POST /v1/fine_tuning/jobs/{id}/cancel": "Cancel a fine-tuning job",
    "POST /v1/fine_tuning/jobs/{id}/pause": "Pause a fine-tuning job",
    "POST /v1/fine_tuning/jobs/{id}/resume": "Resume a fine-tuning job",
    "GET /v1/fine_tuning/jobs/{id}/events": "List the events of a fine-tuning job",
    "GET /v1/fine_tuning/jobs/{id}/checkpoints": "List the checkpoints of a fine-tuning job",
    "GET /v1/vector_stores": "List vector stores",
    "POST /v1/vector_stores": "Create a vector store",
    "GET /v1/vector_stores/{id}": "Get a vector store",
    "POST /v1/vector_stores/{id}": "Update a vector store",
    "DELETE /v1/vector_stores/{id}": "Delete a vector store",
    "POST /v1/vector_stores/{id}/search": "Search a vector store",
    "GET /v1/vector_stores/{id}/files": "List the files of a vector store",
    "POST /v1/vector_stores/{id}/files": "Add a file to a vector store",
    "GET /v1/vector_stores/{id}/files/{id_2}": "Get the indexing progress of a file",
    "POST /v1/vector_stores/{id}/files/{id_2}": "Update a file's attributes",
    "DELETE /v1/vector_stores/{id}/files/{id_2}": "Remove a file from a vector store",
    "GET /v1/vector_stores/{id}/files/{id_2}/content": "Get the chunks of a file",
    "POST /v1/vector_stores/{id}/file_batches": "Add a batch of files to a vector store",
    "GET /v1/vector_stores/{id}/file_batches/{id_2}": "Get the indexing progress of a batch of files",
    "POST /v1/vector_stores/{id}/file_batches/{id_2}/cancel": "Cancel a batch of files",
    "GET /v1/vector_stores/{id}/file_batches/{id_2}/files": "List the files of a batch",
}

_PAGE: Mapping[str, Schema] = {"limit": TEXT, "after": TEXT}
_LIST = fields(data=list_of({}))
_MORE = "A service of the mesh answers; ids in its response are valid at every node."


def path_of(call: ServiceCall) -> str:
    """Return a call's path in OpenAPI's notation, with a name of its own for each id."""
    head, *rest = call.path.split("*")
    ids = ["{id}", *(f"{{id_{number}}}" for number in range(2, len(rest) + 1))]
    return head + "".join(map("".join, zip(ids, rest, strict=False)))


def _described(method: str, call: ServiceCall) -> OperationDoc:
    summary = _SUMMARIES[f"{method} {path_of(call)}"]
    lists, asks = method == "GET" and "*" not in call.path, method == "POST"
    return OperationDoc(
        summary,
        Allowed.ASK,
        runs=True,
        more=_MORE,
        query=_PAGE if lists else {},
        request=OBJECT if asks else None,
        form=OBJECT if asks else None,
        optional_body=True,
        answer=_LIST if lists else OBJECT,
        content=TEXT_OF_WORKER,
    )


SERVICES: Mapping[str, OperationDoc] = {
    f"{method} {path_of(call)}": _described(method, call)
    for call in CALLS
    if call.protocol == OPENAI
    for method in call.methods
}
"""Method and path → description."""


def paths_under(method: str, path: str) -> list[str]:
    """Return the paths of the calls under one route, such as `/v1/files/{tail}`; none for a route that is not of services."""
    called = [call for call in CALLS if call.protocol == OPENAI and method in call.methods]
    return [path_of(call) for call in called if path == call.path.partition("*")[0] + "{tail}"]
