"""Translator between the two protocols of services: the other protocol's equivalent calls, and the meaning of their answers.

A translation is a generator without I/O: it yields each request for the worker, is sent each answer, and returns the answer for
its caller. What the other protocol cannot express is a `WorkerUnable` that names it.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

import orjson

from router.errors import WorkerUnable
from router.openai.body import parse_json_object
from router.openai.text_parser import answer_object, written_answer
from router.requests import Target
from router.services import llama_stack_values as values
from router.services.calls import OPENAI, find

JSON, LINES = "application/json", "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class ServiceAsk:
    """One request to the worker; `path` includes its query. `optional` says that the worker may have no such path."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """The answer for the caller."""

    body: bytes
    content_type: str = JSON


Fields = Mapping[str, object]
Answered = bytes | None
"""The body of an answer, `None` if the worker has no such optional path."""
Translation = Generator[ServiceAsk, Answered, ServiceAnswer]


def begin(target: Target, body: bytes) -> Translation:
    """Return the translation of a call into the other protocol; raise `WorkerUnable` if that has no such call."""
    path, _, query = target.path.partition("?")
    found = find(target.method, path)
    arguments = dict(parse_qsl(query, keep_blank_values=True))
    fields: dict[str, object] = {
        **arguments,
        **(parse_json_object(body) if body.lstrip()[:1] == b"{" else {}),
    }
    table = _TO_LLAMA_STACK if target.protocol == OPENAI else _TO_OPENAI
    name = f"{target.method} {found[0].path if found else path}"
    if found is None or name not in table:
        other = "Llama Stack" if target.protocol == OPENAI else "OpenAI's protocol"
        raise WorkerUnable(f"{other} does not support {name}", param="path")
    if found[1]:
        fields["id"] = found[1][0]
    return table[name](fields)


# Llama Stack's calls at a worker of OpenAI's protocol.


def _batch_submit(fields: Fields) -> Translation:
    source = values.path(fields, "prompt_file_path")
    if source["type"] == "filepath":
        # Only a provider that has this call itself can read a file of its machine.
        body = orjson.dumps(fields)
        reply = yield ServiceAsk("POST", "/batch_inference/jobs/submit", body, optional=True)
        if reply is not None:
            return _said(_read(reply))
    if file := values.file_of(source):
        answer = yield ServiceAsk("GET", f"/v1/files/{_id(file)}/content")
        lines = answer or b""
    else:
        lines = values.raw_bytes(source, "prompt_file_path")
    content_type, form = values.upload(values.batch_lines(lines, fields))
    sent = _read((yield ServiceAsk("POST", "/v1/files", form, content_type)))
    file = values.text_of(sent, "id")
    batch = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    return _said(values.batch_job(_read((yield _post("/v1/batches", batch)))))


def _tuning_submit(fields: Fields) -> Translation:
    job = values.tuning_request(fields)
    return _said(values.tuning_job(_read((yield _post("/v1/fine_tuning/jobs", job)))))


def _status(
    jobs: str, read_job: Callable[[Fields], dict[str, object]], *, cancel: bool = False
) -> Callable[[Fields], Translation]:
    """Return the translation of a call for a job's status, or of one that cancels it; `read_job` reads OpenAI's job."""

    def translate(fields: Fields) -> Translation:
        path = f"{jobs}/{_id(_text(fields, 'job_id'))}"
        ask = _post(f"{path}/cancel", {}) if cancel else ServiceAsk("GET", path)
        return _said(read_job(_read((yield ask))))

    return translate


def _tuning_tail(fields: Fields) -> Translation:
    path = f"/v1/fine_tuning/jobs/{_id(_text(fields, 'job_id'))}/events?limit=100"
    return ServiceAnswer(values.logs(_read((yield ServiceAsk("GET", path)))), LINES)


def _reward(fields: Fields) -> Translation:
    prompt, response = values.scored(fields)
    model = _text(fields, "reward")
    pair = {"model": model, "text_1": prompt, "text_2": response}
    answer = yield ServiceAsk("POST", "/v1/score", orjson.dumps(pair), optional=True)
    if answer is None:
        body = {"model": model, "input": [f"{prompt}\n{response}"]}
        answer = yield ServiceAsk("POST", "/classify", orjson.dumps(body), optional=True)
    if answer is None:
        raise WorkerUnable("the worker has neither /v1/score nor /classify", param="path")
    return _said(values.score(_read(answer)))


def _store_create(fields: Fields) -> Translation:
    return _said(
        values.store(_read((yield _post("/v1/vector_stores", values.store_request(fields)))))
    )


def _store_get(fields: Fields) -> Translation:
    path = f"/v1/vector_stores/{_id(_text(fields, 'id'))}"
    return _said(values.store(_read((yield ServiceAsk("GET", path)))))


def _store_update(fields: Fields) -> Translation:
    path = f"/v1/vector_stores/{_id(_text(fields, 'id'))}"
    return _said(values.store(_read((yield _post(path, values.store_request(fields))))))


def _store_drop(fields: Fields) -> Translation:
    path = f"/v1/vector_stores/{_id(_text(fields, 'id'))}"
    _read((yield ServiceAsk("DELETE", path)))
    return _said({"id": fields["id"]})


def _insert_submit(fields: Fields) -> Translation:
    store, file = _text(fields, "vector_store_id"), fields.get("file_id")
    if not isinstance(file, str):
        content = _text(fields, "content").encode(errors="replace")
        content_type, form = values.upload(content, "assistants", "content.txt")
        sent = yield ServiceAsk("POST", "/v1/files", form, content_type)
        file = values.text_of(_read(sent), "id")
    path = f"/v1/vector_stores/{_id(store)}/file_batches"
    batch = _read((yield _post(path, {"file_ids": [file]})))
    return _said(
        values.store_job(store, values.text_of(batch, "id"), values.text_of(batch, "status"))
    )


def _insert_status(fields: Fields) -> Translation:
    store, id_ = values.of_job(fields)
    batch = yield ServiceAsk("GET", f"/v1/vector_stores/{_id(store)}/file_batches/{_id(id_)}")
    return _said(values.store_job(store, id_, values.text_of(_read(batch), "status")))


def _insert_cancel(fields: Fields) -> Translation:
    store, id_ = values.of_job(fields)
    batch = yield _post(f"/v1/vector_stores/{_id(store)}/file_batches/{_id(id_)}/cancel", {})
    return _said(values.store_job(store, id_, values.text_of(_read(batch), "status")))


def _delete_submit(fields: Fields) -> Translation:
    store, file = _text(fields, "vector_store_id"), _text(fields, "file_id")
    _read((yield ServiceAsk("DELETE", f"/v1/vector_stores/{_id(store)}/files/{_id(file)}")))
    return _said(values.store_job(store, file, "completed"))


def _delete_status(fields: Fields) -> Translation:
    """Translate the status of a deletion, and its cancellation: it is done at once, and cannot be cancelled."""
    store, file = values.of_job(fields)
    path = f"/v1/vector_stores/{_id(store)}/files/{_id(file)}"
    answer = yield ServiceAsk("GET", path, optional=True)
    return _said(values.store_job(store, file, "completed" if answer is None else "failed"))


# OpenAI's calls at a worker of Llama Stack's protocol.


def _job_create(fields: Fields) -> Translation:
    config = values.tuning_config(fields)
    return _said(
        values.openai_job(_read((yield _post("/fine_tuning/jobs/submit", config))), fields)
    )


def _job_get(fields: Fields) -> Translation:
    path = f"/fine_tuning/jobs/status?job_id={_id(_text(fields, 'id'))}"
    return _said(values.openai_job(_read((yield ServiceAsk("GET", path))), {}))


def _job_cancel(fields: Fields) -> Translation:
    body = {"job_id": _text(fields, "id")}
    return _said(values.openai_job(_read((yield _post("/fine_tuning/jobs/cancel", body))), {}))


_TO_OPENAI: Mapping[str, Callable[[Fields], Translation]] = {
    "POST /batch_inference/jobs/submit": _batch_submit,
    "GET /batch_inference/jobs/status": _status("/v1/batches", values.batch_job),
    "POST /batch_inference/jobs/cancel": _status("/v1/batches", values.batch_job, cancel=True),
    "POST /fine_tuning/jobs/submit": _tuning_submit,
    "GET /fine_tuning/jobs/status": _status("/v1/fine_tuning/jobs", values.tuning_job),
    "POST /fine_tuning/jobs/cancel": _status(
        "/v1/fine_tuning/jobs", values.tuning_job, cancel=True
    ),
    "GET /fine_tuning/jobs/tail": _tuning_tail,
    "POST /reward_scoring": _reward,
    "POST /vector_store/create": _store_create,
    "GET /vector_store": _store_get,
    "POST /vector_store/update": _store_update,
    "POST /vector_store/drop": _store_drop,
    "POST /vector_store/insert/jobs/submit": _insert_submit,
    "GET /vector_store/insert/jobs/status": _insert_status,
    "POST /vector_store/insert/jobs/cancel": _insert_cancel,
    "POST /vector_store/delete/jobs/submit": _delete_submit,
    "GET /vector_store/delete/jobs/status": _delete_status,
    "POST /vector_store/delete/jobs/cancel": _delete_status,
}

_TO_LLAMA_STACK: Mapping[str, Callable[[Fields], Translation]] = {
    "POST /v1/fine_tuning/jobs": _job_create,
    "GET /v1/fine_tuning/jobs/*": _job_get,
    "POST /v1/fine_tuning/jobs/*/cancel": _job_cancel,
}

TRANSLATED = frozenset({*_TO_OPENAI, *_TO_LLAMA_STACK})
"""The calls that are translated, by method and path."""


def _post(path: str, body: Mapping[str, object]) -> ServiceAsk:
    return ServiceAsk("POST", path, orjson.dumps(body))


def _said(value: object) -> ServiceAnswer:
    return ServiceAnswer(written_answer(value))


def _read(answer: Answered) -> dict[str, object]:
    return answer_object(answer or b"")


def _text(fields: Fields, name: str) -> str:
    return values.text(fields, name)


def _id(text: str) -> str:
    return quote(text, safe="")
