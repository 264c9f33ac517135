"""Conversion of Llama Stack 0.0.1's values for services to OpenAI's, and back.

Where its specification is silent, these rules hold: a file of `raw_bytes` is its text, or that in base64; a `uri` is one of the
service's own files, `/v1/files/ID/content`; a job that was cancelled or has expired is `failed`, and its `metadata` says which.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import orjson

from router.errors import BadRequest, WorkerFailed, WorkerUnable

Fields = Mapping[str, object]

MAX_LINES = 50_000

_FILE = re.compile(r"(?:https?://[^/?#]{1,300})?/v1/files/([^/?#]{1,1024})/content")
_CLASS = re.compile(r"LABEL_(\d{1,6})")
_BOUNDARY = "modelvine-file-of-lines"
_BATCH_STATES = {
    "validating": "validating",
    "in_progress": "running",
    "finalizing": "running",
    "completed": "completed",
}
_TUNING_STATES = {
    "validating_files": "validation", "queued": "queued", "paused": "queued", "running": "running", "failed": "failed",
    "succeeded": "success", "cancelled": "cancelled",
}  # fmt: skip
_JOB_STATES = {ours: theirs for theirs, ours in _TUNING_STATES.items() if theirs != "paused"}
_OPTIONS = ("max_tokens", "temperature", "top_p", "logprobs")
_SCORERS = frozenset({"", "score", "classify", "rerank"})


def text(fields: Fields, name: str) -> str:
    """Return a field that must be a text and not empty; raise `BadRequest`."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"`{name}` is required", param=name)
    return value


def path(fields: Fields, name: str) -> Fields:
    """Return a `Path`; raise `BadRequest`."""
    match fields.get(name):
        case {"value": str(value), "type": "raw_bytes" | "filepath" | "uri" as kind}:
            return {"value": value, "type": kind}
    raise BadRequest(f"`{name}` needs a `value` and a `type`", param=name)


def file_of(source: Fields) -> str:
    """Return the id of the file that a `Path` names, empty if it contains the bytes; raise `WorkerUnable` for other locations."""
    if source["type"] == "raw_bytes":
        return ""
    if source["type"] == "uri" and (match := _FILE.fullmatch(str(source["value"]))):
        return match[1]
    raise WorkerUnable(
        "the service reads only its own files, /v1/files/ID/content", param="prompt_file_path"
    )


def raw_bytes(source: Fields, name: str) -> bytes:
    """Return the bytes that a `Path` contains; raise `BadRequest`."""
    value = str(source["value"])
    if value.lstrip()[:1] in ("[", "{"):
        return value.encode(errors="replace")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise BadRequest(f"`{name}` holds neither JSON lines nor base64", param=name) from error


def batch_lines(lines: bytes, fields: Fields) -> bytes:
    """Return lines of messages as lines of OpenAI's batch. One that cannot be read stays, and becomes an error of the batch."""
    options = fields.get("options")
    settings = options if isinstance(options, dict) else {}
    if unknown := [name for name in settings if name not in _OPTIONS]:
        raise WorkerUnable(f"options.{unknown[0]} is unknown", param=f"options.{unknown[0]}")
    shared = {"model": text(fields, "model"), **settings}
    number = fields.get("num_generations")
    if isinstance(number, int) and number > 1:
        shared["n"] = number
    rows = lines.splitlines()
    if len(rows) > MAX_LINES:
        raise BadRequest(f"a batch has at most {MAX_LINES:,} lines", param="prompt_file_path")
    return b"".join(_batch_line(n, row, shared) for n, row in enumerate(rows, 1) if row.strip())


def _batch_line(number: int, row: bytes, shared: Fields) -> bytes:
    id_ = str(number)
    try:
        parsed = orjson.loads(row)
    except orjson.JSONDecodeError:
        return row + b"\n"
    match parsed:
        case {"messages": list(messages), **rest}:
            id_ = str(rest.get("custom_id", id_))
        case list(messages):
            pass
        case _:
            return row + b"\n"
    body = {**shared, "messages": [*map(_message, messages)]}
    line = {"custom_id": id_, "method": "POST", "url": "/v1/chat/completions", "body": body}
    try:
        return orjson.dumps(line) + b"\n"
    except orjson.JSONEncodeError:
        # What is nested deeply can be read, but not written.
        return row + b"\n"


def _message(message: object) -> object:
    match message:
        case {"text": str(content), **rest} if not rest.get("attachments"):
            return {"role": rest.get("role", "user"), "content": content}
    return message


def upload(content: bytes, purpose: str = "batch", name: str = "lines.jsonl") -> tuple[str, bytes]:
    """Return the content type and the body of a form that uploads a file."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n--{_BOUNDARY}\r\n'
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return f"multipart/form-data; boundary={_BOUNDARY}", body


def batch_job(answer: Fields) -> dict[str, object]:
    """Return OpenAI's batch as a `BatchInferenceJob`."""
    job: dict[str, object] = {"job_id": _own(answer), "created": _time(answer.get("created_at"))}
    state = str(answer.get("status"))
    job["status"] = _BATCH_STATES.get(state, "failed")
    for name, openai_name in (("input", "input"), ("success", "output"), ("error", "error")):
        if isinstance(id_ := answer.get(f"{openai_name}_file_id"), str):
            job[f"{name}_file_path"] = {"value": f"/v1/files/{id_}/content", "type": "uri"}
    if state not in _BATCH_STATES:
        job["metadata"] = {"status": state}
    return _without_nothing(job)


def tuning_request(fields: Fields) -> dict[str, object]:
    """Return a `Config` as OpenAI's request for a fine-tuning job; raise `WorkerUnable` for what that lacks."""
    job: dict[str, object] = {"model": text(fields, "model")}
    for field, openai_name in (("data", "training_file"), ("validation_data", "validation_file")):
        if fields.get(field) is not None:
            file = text(fields, field)
            match = _FILE.fullmatch(file)
            if not match and ("/" in file or ":" in file):
                raise WorkerUnable(
                    "the service reads only its own files, by their ids", param=field
                )
            job[openai_name] = match[1] if match else file
    options = fields.get("fine_tuning_options")
    settings = dict(options) if isinstance(options, dict) else {}
    hyper = {name: settings.pop(name) for name in ("n_epochs", "batch_size") if name in settings}
    if "seed" in settings:
        job["seed"] = settings.pop("seed")
    unsupported = [f"fine_tuning_options.{name}" for name in settings]
    unsupported += [name for name in ("logger", "overrides") if fields.get(name)]
    if unsupported:
        raise WorkerUnable(
            f"OpenAI's protocol does not support `{unsupported[0]}`", param=unsupported[0]
        )
    if hyper:
        job["hyperparameters"] = hyper
    return job | ({"metadata": fields["metadata"]} if fields.get("metadata") else {})


def tuning_job(answer: Fields) -> dict[str, object]:
    """Return OpenAI's fine-tuning job as a `FineTuningJob`."""
    files = answer.get("result_files")
    job = {
        "job_id": _own(answer),
        "created": _time(answer.get("created_at")),
        "finished_at": _time(answer.get("finished_at")),
        "status": _TUNING_STATES.get(str(answer.get("status")), "failed"),
        "checkpoints": [
            f"/v1/files/{file}/content" for file in (files if isinstance(files, list) else ())
        ],
        "metadata": answer.get("metadata"),
    }
    return _without_nothing(job)


def logs(answer: Fields) -> bytes:
    """Return a list of events, the newest first, as the lines of a log, the oldest first."""
    events = answer.get("data")
    rows = [*_logs(events if isinstance(events, list) else [])]
    return b"".join(orjson.dumps({"logs": [row]}) + b"\n" for row in reversed(rows))


def _logs(events: list[object]) -> Iterator[dict[str, object]]:
    for event in events:
        match event:
            case {"message": str(message), "created_at": int(when)}:
                yield {"message": message, "timestamp": _time(when)}


def scored(fields: Fields) -> tuple[str, str]:
    """Return the prompt and the response to score; raise `WorkerUnable` for a scoring function that the worker does not have."""
    match fields.get("scoring_function"):
        case {"name": str(name)} if name not in _SCORERS:
            raise WorkerUnable(
                f"the worker has no scoring function {name!r}", param="scoring_function"
            )
    return conversation(fields)


def conversation(fields: Fields) -> tuple[str, str]:
    """Return the prompt and the response of a request for a score, as text; raise `BadRequest`."""
    messages = fields.get("prompt_with_response")
    if not isinstance(messages, list) or len(messages) < 2:
        raise BadRequest(
            "`prompt_with_response` has two messages or more", param="prompt_with_response"
        )
    texts = [m.get("text") or m.get("content") for m in messages if isinstance(m, dict)]
    if len(texts) < len(messages) or not all(isinstance(part, str) for part in texts):
        raise BadRequest("each message has a `text`", param="prompt_with_response")
    *prompt, response = map(str, texts)
    return "\n".join(prompt), response


def score(answer: Fields) -> dict[str, object]:
    """Return vLLM's score, or the last class's probability from vLLM or infinity, as the answer of `/reward_scoring`."""
    match answer.get("data"):
        case [{"score": int() | float() as number}, *_]:
            value = float(number)
        case [{"probs": [*_, int() | float() as number]}, *_]:
            value = float(number)
        case [[_, *_] as classes, *_] if (last := _last_of(classes)) is not None:
            value = last
        case _:
            raise WorkerFailed("the worker's answer holds no score")
    id_ = answer.get("id")
    return {"id": id_ if isinstance(id_, str) else "score", "score": value}


def _last_of(classes: Sequence[object]) -> float | None:
    """Return the score of the last class, `None` if classes have names of their own. They come in any order."""
    scores: dict[int, float] = {}
    for entry in classes:
        match entry:
            case {"label": str(label), "score": int() | float() as score}:
                if (number := _CLASS.fullmatch(label)) is None:
                    return None
                scores[int(number[1])] = float(score)
            case _:
                return None
    return scores[max(scores)]


def store_request(fields: Fields) -> dict[str, object]:
    """Return the description of a vector store as OpenAI's request."""
    request: dict[str, object] = {}
    if fields.get("name"):
        request["name"] = text(fields, "name")
    if fields.get("description"):
        request["metadata"] = {"description": text(fields, "description")}
    return request


def store(answer: Fields) -> dict[str, object]:
    """Return OpenAI's vector store as a `VectorStore`."""
    metadata = answer.get("metadata")
    about = metadata.get("description") if isinstance(metadata, dict) else None
    return _without_nothing({"id": _own(answer), "name": answer.get("name"), "description": about})


def store_job(store_id: str, id_: str, state: str) -> dict[str, object]:
    """Return a job that changes a store's content. Its schema has no state, so `content` contains it."""
    return {"id": f"{store_id}:{id_}", "content": state}


def of_job(fields: Fields) -> tuple[str, str]:
    """Return the store and the change that such a job's id names; raise `BadRequest` for another id."""
    store_id, mark, id_ = text(fields, "id" if "id" in fields else "job_id").partition(":")
    if not (store_id and mark and id_):
        raise BadRequest("`id` is not a job of a vector store", param="id")
    return store_id, id_


def tuning_config(fields: Fields) -> dict[str, object]:
    """Return OpenAI's request for a fine-tuning job as a `Config`; raise `WorkerUnable`."""
    data = text(fields, "training_file")
    if "://" not in data:
        raise WorkerUnable("Llama Stack has no files: use a URI", param="training_file")
    config: dict[str, object] = {"model": text(fields, "model"), "data": data}
    if fields.get("validation_file"):
        config["validation_data"] = text(fields, "validation_file")
    hyper = fields.get("hyperparameters")
    options = dict(hyper) if isinstance(hyper, dict) else {}
    if "learning_rate_multiplier" in options:
        raise WorkerUnable(
            "Llama Stack does not support `learning_rate_multiplier`", param="hyperparameters"
        )
    if isinstance(fields.get("seed"), int):
        options["seed"] = fields["seed"]
    return config | ({"fine_tuning_options": options} if options else {})


def openai_job(answer: Fields, fields: Fields) -> dict[str, object]:
    """Return a `FineTuningJob` as OpenAI's; the request fills in what it does not contain."""
    config = answer.get("input_config")
    settings = config if isinstance(config, dict) else {}
    checkpoints = answer.get("checkpoints")
    return {
        "id": text_of(answer, "job_id"),
        "object": "fine_tuning.job",
        "created_at": _seconds(answer.get("created")) or 0,
        "finished_at": _seconds(answer.get("finished_at")),
        "status": _JOB_STATES.get(str(answer.get("status")), "failed"),
        "model": settings.get("model", fields.get("model", "")),
        "training_file": settings.get("data", fields.get("training_file", "")),
        "validation_file": settings.get("validation_data", fields.get("validation_file")),
        "hyperparameters": {},
        "organization_id": "",
        "result_files": [*map(_id_of, checkpoints)] if isinstance(checkpoints, list) else [],
        "seed": 0,
        "fine_tuned_model": None,
        "trained_tokens": None,
        "error": None,
    }


def text_of(answer: Fields, name: str) -> str:
    """Return a text in a worker's answer; raise `WorkerFailed`."""
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise WorkerFailed(f"the worker's answer has no `{name}`")
    return value


def _id_of(location: object) -> object:
    """Return the id of one of the service's own files, any other location unchanged."""
    match = _FILE.fullmatch(location) if isinstance(location, str) else None
    return match[1] if match else location


def _own(answer: Fields) -> str:
    return text_of(answer, "id")


def _time(seconds: object) -> str | None:
    if not isinstance(seconds, int) or not 0 <= seconds < 2**33:
        return None
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _seconds(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        return int(datetime.fromisoformat(value).timestamp())
    except (ValueError, OverflowError):
        return None


def _without_nothing(fields: Fields) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
