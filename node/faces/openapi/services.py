"""Descriptions of the calls of services other than models: files, batches, fine-tuning and vector stores, in OpenAI's form."""

from collections.abc import Mapping

from node.faces.openapi.description import (
    OBJECT,
    TEXT,
    Allowed,
    OperationDoc,
    Schema,
    fields,
    list_of,
)
from node.faces.openapi.models import TEXT_OF_WORKER
from router.services.calls import CALLS, OPENAI, ServiceCall

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


TABLE: Mapping[str, OperationDoc] = {
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
