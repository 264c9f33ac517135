"""Parser for workers' descriptions of themselves: `/v1/models`, with each server's own fields, and llama.cpp's `/props`."""

from collections.abc import Mapping
from dataclasses import replace

from registry.records import Ability, ModelType
from registry.wire import MAX_NAME_BYTES
from router.dialects.openai_http.endpoints import type_at
from router.worker_description import (
    MOST_SLOTS,
    OfferedModel,
    WorkerDescription,
    abilities_of,
    count_of,
    first_count,
    models_of,
    text_of,
)

# Servers by the value of `owned_by` that they give their models.
_OWNERS: Mapping[str, str] = {
    "library": "Ollama",
    "llamacpp": "llama.cpp",
    "organization_owner": "LM Studio",
    "sglang": "SGLang",
    "vllm": "vLLM",
}
# LiteLLM's words for what a model does.
_MODES: Mapping[str, ModelType] = {
    "audio_speech": ModelType.SPEECH,
    "audio_transcription": ModelType.TRANSCRIPTION,
    "embedding": ModelType.EMBEDDING,
    "image_edit": ModelType.IMAGE_EDIT,
    "image_generation": ModelType.IMAGE,
    "rerank": ModelType.RERANK,
}
_TYPES = {int(kind): kind for kind in ModelType}
_MOST_CHARACTERS = 2_048
_CONTEXTS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
)


def is_list(value: object) -> bool:
    """Return whether this is a list of models at all."""
    fields = _object(value)
    if fields.get("object") == "list" and fields.get("data", ()) is None:
        # Ollama without models.
        return True
    rows = fields.get("data")
    return isinstance(rows, list) and all(_name(_object(row)) is not None for row in rows)


def describes(value: object, path: str) -> bool:
    """Return whether a server's own description (OpenAPI) has a POST operation at `path`."""
    return "post" in _object(_object(_object(value).get("paths")).get(path))


def listed(value: object) -> WorkerDescription:
    """Read an answer of `/v1/models`; one of another shape yields nothing."""
    rows, project = _object(value).get("data"), _object(value).get("project")
    entries = [_object(row) for row in rows] if isinstance(rows, list) else []
    models = models_of(_offered(row, project) for row in entries)
    return WorkerDescription(software=_software(entries), models=models)


def with_properties(described: WorkerDescription, value: object) -> WorkerDescription:
    """Add what llama.cpp's `/props` tells of the one model that it runs: its slots, the context of each slot, its abilities."""
    properties = _object(value)
    slots = count_of(properties.get("total_slots"), MOST_SLOTS)
    if not slots or len(described.models) > 1:
        return described
    (model,) = described.models or (OfferedModel(""),)
    context = count_of(_object(properties.get("default_generation_settings")).get("n_ctx"))
    model = replace(
        model,
        context=context or model.context,
        abilities=(_modalities(properties) or model.abilities) | _tools(properties),
    )
    build = text_of(properties.get("build_info"))
    return replace(described, software=f"llama.cpp {build}".strip(), models=(model,), slots=slots)


def _name(row: Mapping[str, object]) -> str | None:
    """Return a model's name: OpenAI's `id`, or the interface standard's `model`, which comes with a `url`."""
    match row:
        case {"id": str(name)} | {"model": str(name), "url": str()}:
            return name
    return None


def _offered(row: Mapping[str, object], project: object) -> OfferedModel:
    shape = _object(row.get("architecture"))
    context = first_count(row, *_CONTEXTS) or count_of(_object(row.get("meta")).get("n_ctx"))
    abilities = abilities_of(shape.get("input_modalities"), shape.get("output_modalities"))
    offered = OfferedModel(_name(row) or "", context, abilities)
    standard, ours = "id" not in row, _is_ours(row)
    if not standard and not ours:
        # Other servers may mean something else by the fields below.
        return replace(offered, type=_MODES.get(text_of(row.get("mode"))))
    # A modelvine node serves all its models at one address.
    api = text_of(row.get("url"), _MOST_CHARACTERS) if standard else ""
    number, whose = row.get("type"), text_of(row.get("project", project), MAX_NAME_BYTES)
    return replace(offered, type=_type(number, api), api=api, project=whose)


def _type(value: object, api: str) -> ModelType | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return _TYPES.get(value)
    return type_at(api)


def _is_ours(row: Mapping[str, object]) -> bool:
    return "replicas" in row and "projects" in row


def _software(rows: list[Mapping[str, object]]) -> str:
    for row in rows:
        if _is_ours(row):
            return "modelvine"
        if (owner := text_of(row.get("owned_by"))) in _OWNERS:
            return _OWNERS[owner]
    return ""


def _modalities(properties: Mapping[str, object]) -> Ability:
    modalities = _object(properties.get("modalities"))
    if not isinstance(modalities.get("vision"), bool):
        return Ability.NOT_SAID
    abilities = Ability.TEXT_IN | Ability.TEXT_OUT
    for name, ability in (
        ("vision", Ability.IMAGE_IN),
        ("audio", Ability.AUDIO_IN),
        ("video", Ability.VIDEO_IN),
    ):
        if modalities.get(name) is True:
            abilities |= ability
    return abilities


def _tools(properties: Mapping[str, object]) -> Ability:
    caps = _object(properties.get("chat_template_caps"))
    return Ability.TOOLS if caps.get("supports_tool_calls") is True else Ability.NOT_SAID


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
