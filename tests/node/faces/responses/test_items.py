"""Mapping of items to messages: items of one turn are joined, unreadable ones refused by their place."""

import pytest

from node.faces.responses.items import MAX_ITEMS, MAX_PARTS, messages
from router.errors import BadRequest, WorkerUnable

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": "grapes"}
USER = {"role": "user", "content": "hi"}


def of(*items, **fields):
    return messages({"input": list(items), **fields})


def test_a_text_input_becomes_a_user_message():
    assert messages({"input": "hi"}) == [USER]


def test_leading_developer_and_system_items_become_one_system_message():
    first = {"role": "developer", "content": "Be kind."}
    second = {"role": "system", "content": [{"type": "input_text", "text": "Rhyme."}]}
    system, user, late = of(first, second, USER, second, instructions="Be brief.")
    assert system == {"role": "system", "content": "Be brief.\n\nBe kind.\n\nRhyme."}
    assert (user, late) == (USER, {"role": "system", "content": "Rhyme."})


def test_the_type_of_a_message_is_optional():
    assert of({"type": "message", **USER}) == of({"type": None, **USER}) == of(USER)


def test_output_items_become_the_text_of_the_assistant():
    parts = [
        {"type": "output_text", "text": "ho", "annotations": []},
        {"type": "refusal", "refusal": "!"},
    ]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": parts}
    assert of(USER, message)[1] == {"role": "assistant", "content": "ho!"}


def test_text_and_calls_of_the_model_become_one_message():
    message = {"role": "assistant", "content": "See:"}
    second = CALL | {"call_id": "c2"}
    _, assistant, tool = of(USER, message, CALL, second, ANSWER)
    assert assistant["content"] == "See:"
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "grapes"}


def test_a_call_in_a_namespace_is_prefixed_with_it():
    _, assistant = of(USER, CALL | {"namespace": "vines"})
    assert assistant["tool_calls"][0]["function"]["name"] == "vines__look"


def test_calls_after_an_answer_are_another_turn():
    again = CALL | {"call_id": "c2"}
    roles = [message["role"] for message in of(USER, CALL, ANSWER, again)]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_a_tools_output_may_come_in_parts():
    parts = [{"type": "input_text", "text": "gra"}, {"type": "input_text", "text": "pes"}]
    assert of(USER, CALL, ANSWER | {"output": parts})[2]["content"] == "grapes"


@pytest.mark.parametrize("after", [[], [USER]])
def test_images_of_tools_follow_after_all_tool_outputs(after):
    parts = [{"type": "input_text", "text": "a vine"}, {"type": "input_image", "image_url": "u"}]
    second = CALL | {"call_id": "c2"}
    answers = [ANSWER | {"output": parts}, ANSWER | {"call_id": "c2"}]
    messages = of(USER, CALL, second, *answers, *after)
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "a vine"}
    assert messages[3]["role"] == "tool"
    assert messages[4:] == [{"role": "user", "content": [image]}, *after]


def test_earlier_reasoning_is_left_out():
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert of(USER, thoughts) == [USER]


def test_texts_and_images_stay_in_their_order():
    parts = [
        {"type": "input_image", "image_url": "http://a/b.png", "detail": "original"},
        {"type": "input_text", "text": "What?"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ]
    [message] = of({"role": "user", "content": parts})
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
        {"type": "text", "text": "What?"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ("hi", "input[0]"),
        ({}, "input[0].type"),
        ({"type": 7}, "input[0].type"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": ["user"], "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 7}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[0].content[0].input_audio"),
        (CALL | {"call_id": ""}, "input[0].call_id"),
        (CALL | {"name": 7}, "input[0].name"),
        (CALL | {"namespace": 7}, "input[0].namespace"),
        (CALL | {"arguments": {}}, "input[0].arguments"),
        (ANSWER, "input[0].call_id"),
    ],
)
def test_a_fault_is_named_by_its_place(item, param):
    with pytest.raises(BadRequest) as wrong:
        of(item)
    assert wrong.value.param == param


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call", "id": "x"}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0]"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "input[0].content[0].file_id",
        ),
        (
            {"role": "system", "content": [{"type": "input_image", "image_url": "u"}]},
            "input[0].content[0].type",
        ),
    ],
)
def test_items_that_a_chat_cannot_express_are_refused_by_their_place(item, param):
    with pytest.raises(WorkerUnable) as unable:
        of(item)
    assert unable.value.param == param


@pytest.mark.parametrize(
    "given",
    [None, 7, {}, [], [{"type": "reasoning"}], [USER] * (MAX_ITEMS + 1)],
)
def test_an_input_must_not_be_empty_or_too_long(given):
    with pytest.raises(BadRequest) as wrong:
        messages({"input": given})
    assert wrong.value.param == "input"


def test_the_parts_of_a_message_are_limited():
    parts = [{"type": "input_text", "text": ""}] * (MAX_PARTS + 1)
    with pytest.raises(BadRequest, match="at most 10,000 parts"):
        of({"role": "user", "content": parts})
