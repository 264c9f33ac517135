"""Ids of a service's objects: jobs, files, stores. Callers see each with its home, so that any node knows where to ask.

An id is `ID@NODE.TAG`: the service's own id, the node, and a tag that tells the services of that node apart.
"""

import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

import orjson

from registry.records import PeerId, Service

MAX_HOMED_BYTES = 16 * 1024 * 1024
"""The longest answer whose ids are given a home; a longer one passes unchanged."""

FIELDS = frozenset({
    "id", "job_id", "batch_id", "file_id", "file_ids", "input_file_id", "output_file_id", "error_file_id", "training_file",
    "validation_file", "result_files", "vector_store_id", "upload_id", "part_ids", "first_id", "last_id", "after", "before",
    "bankIds", "fine_tuning_job_id",
})  # fmt: skip
"""Fields that contain one id or several, in both protocols."""

PLACES = frozenset({
    "prompt_file_path", "prompt_with_response_path", "input_file_path", "success_file_path", "error_file_path", "data",
    "validation_data", "checkpoints", "error_path", "logs",
})  # fmt: skip
"""Fields of Llama Stack that contain the location of a file, or several; the location of a file at a node contains its id."""

_FILE = re.compile(r"^((?:https?://[^/?#]{1,300})?/v1/files/)([^/?#]{1,1024})(?=/content$)")
_HOMED = re.compile(r"(.{1,512})@(12D3KooW[1-9A-HJ-NP-Za-km-z]{44})\.([0-9a-f]{8})", re.DOTALL)


class ServiceHome(NamedTuple):
    """The node of a service, and the tag of the service there."""

    node: PeerId
    tag: str


def home_of(node: PeerId, service: Service) -> ServiceHome:
    """Return the home of a service's objects."""
    name = f"{service.project}\0{service.model}\0{service.cid}"
    return ServiceHome(node, hashlib.sha256(name.encode()).hexdigest()[:8])


def is_kept_by(home: ServiceHome, node: PeerId, service: Service) -> bool:
    """Return whether a service has a home's objects: services of one project, name and cid share theirs, at any node."""
    return home.tag == home_of(node, service).tag and (bool(service.cid) or home.node == node)


def add_homes(body: bytes, home: ServiceHome) -> bytes:
    """Return a JSON answer with this home added to each id, in the answer itself and in the objects that it lists."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(answer, dict):
        return body

    def name(id_: str) -> str:
        # A URI is valid on every node.
        return f"{id_}@{home.node}.{home.tag}" if id_ and "://" not in id_ else id_

    listed = answer.get("data")
    for item in (answer, answer.get("file"), *(listed if isinstance(listed, list) else ())):
        if isinstance(item, dict):
            item.update(_changed(item, name, lambda place: _in_place(place, name)))
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError:
        return body


class HomeRemover:
    """Remover of the homes from the ids of one request. All of `homes` must have the same objects."""

    def __init__(self) -> None:
        self.homes: frozenset[ServiceHome] = frozenset()

    def strip_id(self, text: str) -> str:
        """Return an id as its service knows it."""
        match = _HOMED.fullmatch(text)
        if match is None:
            return text
        self.homes |= {ServiceHome(PeerId(match[2]), match[3])}
        return match[1]

    def strip_fields(self, fields: dict[str, object]) -> dict[str, object]:
        """Return the changed fields of a body, with the homes removed; the location of a file may be just its id."""
        return _changed(
            fields, self.strip_id, lambda place: self.strip_id(_in_place(place, self.strip_id))
        )


def _in_place(location: str, change: Callable[[str], str]) -> str:
    return _FILE.sub(lambda found: found[1] + change(found[2]), location)


def _changed(
    fields: dict[str, object], change: Callable[[str], str], moved: Callable[[str], str]
) -> dict[str, object]:
    changed: dict[str, object] = {}
    for name in PLACES.intersection(fields):
        match fields[name]:
            case {"value": str(location), **rest}:
                changed[name] = {**rest, "value": moved(location)}
            case str(location):
                changed[name] = moved(location)
            case [*locations] if all(isinstance(item, str) for item in locations):
                changed[name] = [moved(str(item)) for item in locations]
    for name in FIELDS.intersection(fields):
        match fields[name]:
            case str(id_):
                changed[name] = change(id_)
            case [*several] if all(isinstance(item, str) for item in several):
                changed[name] = [change(str(item)) for item in several]
    return {name: value for name, value in changed.items() if value != fields[name]}
