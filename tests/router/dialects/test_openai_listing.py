"""What is read of lists of models as servers of OpenAI's protocol give them."""

import pytest
from hypothesis import given

from registry.abilities import Ability
from router.described import Described, Offered
from router.dialects.openai_http.listing import is_list, listed, with_properties
from tests.router.test_described import JSON

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


def test_llama_cpp_tells_its_context_and_what_it_takes() -> None:
    assert listed(LLAMA) == Described("llama.cpp", (Offered("tiny", 4096, TEXT),))


def test_the_tokens_of_one_slot_are_what_a_request_has() -> None:
    said = with_properties(listed(LLAMA), PROPERTIES)
    assert (said.software, said.slots) == ("llama.cpp b6789-abc", 4)
    assert said.models == (Offered("tiny", 1024, TEXT | Ability.IMAGE_IN | Ability.TOOLS),)


def test_an_older_llama_cpp_that_lists_nothing_more_is_known_by_its_properties() -> None:
    said = with_properties(listed({"data": [{"id": "tiny"}]}), {**PROPERTIES, "modalities": {}})
    assert said.models == (Offered("tiny", 1024, Ability.TOOLS),)


def test_what_is_no_properties_of_llama_cpp_adds_nothing() -> None:
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
        ({"max_model_len": 2**40}, "", 0),
        ({"max_model_len": "many"}, "", 0),
    ],
)
def test_each_server_is_known_by_words_of_its_own(
    row: dict[str, object], software: str, context: int
) -> None:
    said = listed({"data": [{"id": "a", **row}, {"id": "b"}]})
    assert said.software == software
    assert said.models == (Offered("a", context), Offered("b"))


@given(JSON, JSON)
def test_whatever_is_said_is_read_or_passed_over(one: object, other: object) -> None:
    for said in (
        one,
        {"data": one},
        {"data": [{"id": "x", "architecture": one, "meta": other, "owned_by": one}]},
    ):
        is_list(said)
        assert isinstance(with_properties(listed(said), other), Described)
    with_properties(
        Described(), {"total_slots": 1, "modalities": one, "default_generation_settings": other}
    )


def test_a_list_is_known_by_its_shape() -> None:
    assert is_list(LLAMA)
    assert is_list({"data": []})
    for other in (None, [], {}, {"data": {}}, {"data": ["x"]}, {"data": [{"id": 5}]}):
        assert not is_list(other)
