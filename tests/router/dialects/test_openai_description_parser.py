"""Parsing of the model lists of servers that speak OpenAI's protocol."""

import pytest
from hypothesis import given

from registry.records import Ability, ModelType
from router.dialects.openai_http.description_parser import is_list, listed, with_properties
from router.worker_description import OfferedModel, WorkerDescription
from tests.router.test_worker_description import JSON

TEXT = Ability.TEXT_IN | Ability.TEXT_OUT
LLAMA = {
    "object": "list",
    "models": [{"name": "tiny", "capabilities": ["completion"]}],
    "data": [
        {
            "id": "tiny",
            "object": "model",
            "owned_by": "llamacpp",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "meta": {"n_ctx": 4096, "n_ctx_train": 8192, "n_params": 134515008},
        }
    ],
}
PROPERTIES = {
    "default_generation_settings": {"n_ctx": 1024, "params": {}},
    "total_slots": 4,
    "modalities": {"vision": True, "audio": False},
    "chat_template_caps": {"supports_tool_calls": True},
    "build_info": "b6789-abc",
}


def test_llama_cpp_lists_its_context_and_modalities() -> None:
    assert listed(LLAMA) == WorkerDescription("llama.cpp", (OfferedModel("tiny", 4096, TEXT),))


def test_the_context_of_a_request_is_that_of_one_slot() -> None:
    description = with_properties(listed(LLAMA), PROPERTIES)
    assert (description.software, description.slots) == ("llama.cpp b6789-abc", 4)
    assert description.models == (
        OfferedModel("tiny", 1024, TEXT | Ability.IMAGE_IN | Ability.TOOLS),
    )


def test_an_older_llama_cpp_is_described_by_its_properties_alone() -> None:
    description = with_properties(
        listed({"data": [{"id": "tiny"}]}), {**PROPERTIES, "modalities": {}}
    )
    assert description.models == (OfferedModel("tiny", 1024, Ability.TOOLS),)


def test_properties_that_are_not_llama_cpps_add_nothing() -> None:
    for other in (None, [], {}, {"total_slots": "4"}, {"total_slots": True}, {"total_slots": 0}):
        assert with_properties(listed(LLAMA), other) == listed(LLAMA)


@pytest.mark.parametrize(
    ("row", "software", "context"),
    [
        ({"owned_by": "vllm", "max_model_len": 32768}, "vLLM", 32768),
        ({"owned_by": "sglang", "max_model_len": 100}, "SGLang", 100),
        ({"owned_by": "library"}, "Ollama", 0),
        ({"owned_by": "organization_owner"}, "LM Studio", 0),
        ({"context_window": 9, "owned_by": ["x"]}, "", 9),
        ({"replicas": 2, "projects": ["p"], "context_length": 8}, "modelvine", 8),
        ({"mode": "chat", "max_input_tokens": 8191}, "", 8191),
        ({"max_model_len": 2**40}, "", 0),
        ({"max_model_len": "many"}, "", 0),
    ],
)
def test_each_server_is_recognised_by_its_own_fields(
    row: dict[str, object], software: str, context: int
) -> None:
    description = listed({"data": [{"id": "a", **row}, {"id": "b"}]})
    assert description.software == software
    assert description.models == (OfferedModel("a", context), OfferedModel("b"))


def test_litellm_lists_what_each_model_does() -> None:
    modes = ["embedding", "rerank", "audio_speech", "chat", "unheard", ["odd"]]
    description = listed({"data": [{"id": str(mode), "mode": mode} for mode in modes]})
    types = [ModelType.EMBEDDING, ModelType.RERANK, ModelType.SPEECH]
    assert [model.type for model in description.models] == [*types, None, None, None]


@given(JSON, JSON)
def test_any_json_is_read_or_ignored(one: object, other: object) -> None:
    for payload in (
        one,
        {"data": one},
        {"data": [{"id": "x", "architecture": one, "meta": other, "owned_by": one}]},
    ):
        is_list(payload)
        assert isinstance(with_properties(listed(payload), other), WorkerDescription)
    with_properties(
        WorkerDescription(),
        {"total_slots": 1, "modalities": one, "default_generation_settings": other},
    )


def test_a_model_list_is_recognised_by_its_shape() -> None:
    assert is_list(LLAMA)
    assert is_list({"data": []})
    assert is_list({"object": "list", "data": None})
    for other in (
        None,
        [],
        {},
        {"data": None},
        {"object": "list"},
        {"data": {}},
        {"data": ["x"]},
        {"data": [{"id": 5}]},
    ):
        assert not is_list(other)


SEED = {
    "project": "DecentralGPT",
    "data": [
        {"model": "Llama3-8B", "url": "http://127.0.0.1:1088/v1/chat/completions"},
        {"model": "SuperImage", "url": "http://127.0.0.1:1088/v1/images/generations"},
        {"model": "SuperImage", "url": "http://127.0.0.1:1089/v1/images/edits"},
        {"model": "own", "url": "http://127.0.0.1:1088/custom/chat"},
        {"model": "typed", "url": "http://127.0.0.1:1088/draw", "type": 1, "project": "p"},
    ],
}


def test_the_standards_list_gives_project_and_url_of_each_model_and_thereby_its_type() -> None:
    assert is_list(SEED)
    assert [
        (m.name, m.type, m.api.removeprefix("http://127.0.0.1:"), m.project)
        for m in listed(SEED).models
    ] == [
        ("Llama3-8B", ModelType.TEXT, "1088/v1/chat/completions", "DecentralGPT"),
        ("SuperImage", ModelType.IMAGE, "1088/v1/images/generations", "DecentralGPT"),
        ("SuperImage", ModelType.IMAGE_EDIT, "1089/v1/images/edits", "DecentralGPT"),
        ("own", None, "1088/custom/chat", "DecentralGPT"),
        ("typed", ModelType.IMAGE, "1088/draw", "p"),
    ]


def test_the_same_fields_in_another_servers_list_are_not_read_as_the_standards() -> None:
    row = {"id": "m", "url": "https://models.example/m", "type": 1, "project": "proj_1"}
    assert listed({"project": "x", "data": [row]}).models == (OfferedModel("m"),)


def test_a_modelvine_node_lists_types_and_projects_but_no_urls_of_its_models() -> None:
    row = {"id": "m", "model": "m", "url": "http://127.0.0.1:1/v1/images/edits", "type": 2}
    row |= {"project": "p", "replicas": 1, "projects": ["p"]}
    assert listed({"data": [row]}).models == (
        OfferedModel("m", type=ModelType.IMAGE_EDIT, project="p"),
    )


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m"},
        {"model": 5, "url": "http://127.0.0.1:1"},
        {"model": "m", "url": 5},
        {"url": "http://127.0.0.1:1"},
    ],
)
def test_a_row_without_a_model_or_url_makes_no_list(row: dict[str, object]) -> None:
    assert not is_list({"project": "p", "data": [row]})


@pytest.mark.parametrize(
    "row",
    [
        {"url": "http://[", "type": 99},
        {"url": "", "project": 5},
        {"url": "http://127.0.0.1/v1/" + "x" * 5000, "project": "p\n"},
        {"url": "x", "type": True, "project": None},
    ],
)
def test_odd_values_in_the_standards_list_are_ignored(row: dict[str, object]) -> None:
    (model,) = listed({"data": [{"model": "m", **row}]}).models
    assert model.type is None
    assert model.project == ""
