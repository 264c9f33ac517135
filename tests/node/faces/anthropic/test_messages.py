"""Mapping of turns of blocks to messages: texts, images, documents, tool calls and their results."""

import pytest

from node.faces.anthropic.messages import FAILED, MAX_URL_CHARACTERS, messages_of
from router.errors import BadRequest
from tests.router.canonical.hostile import outcome

PNG = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
IMAGE = {"type": "image", "source": PNG}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Paris"}'},
}


def text(content: str) -> dict[str, object]:
    return {"type": "text", "text": content}


def result(content=None, **fields) -> dict[str, object]:
    optional = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": "toolu_1", **optional, **fields}


def user(*blocks):
    return messages_of({"messages": [{"role": "user", "content": list(blocks)}]})


def assistant(*blocks):
    return messages_of({"messages": [{"role": "assistant", "content": list(blocks)}]})


def fault(content, role="user", **fields) -> str | None:
    body = {"messages": [{"role": role, "content": content}], **fields}
    return outcome(lambda: messages_of(body))[1]


def test_texts_of_a_turn_are_joined_and_empty_ones_dropped():
    assert user(text("a"), text(""), text("b")) == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize("system", ["Be brief.", [text("Be"), text("brief.")]])
def test_the_system_prompt_is_the_first_message(system):
    first, second = messages_of({"system": system, "messages": [{"role": "user", "content": "hi"}]})
    assert first["role"] == "system"
    assert first["content"] in ("Be brief.", "Be\nbrief.")
    assert second == {"role": "user", "content": "hi"}


def test_a_system_message_in_the_middle_stays_there():
    messages = messages_of(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "system", "content": "Now in French."},
                {"role": "user", "content": "go on"},
            ]
        }
    )
    assert [message["role"] for message in messages] == ["user", "system", "user"]


def test_consecutive_turns_of_one_role_are_merged():
    messages = messages_of(
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [text("b")]}]}
    )
    assert messages == [{"role": "user", "content": "a\nb"}]


def test_images():
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert user(IMAGE, text("What is it?"), linked) == [
        {
            "role": "user",
            "content": [
                SHOWN,
                text("What is it?"),
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        }
    ]


def test_text_documents_and_search_results_become_text():
    plain = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    inner = {"type": "content", "content": [text("One."), IMAGE]}
    search_result = {
        "type": "search_result",
        "title": "T",
        "source": "S",
        "content": [text("Found.")],
    }
    (message,) = user({"type": "document", "title": "Weather", "source": plain}, search_result)
    assert message["content"] == "Weather\nIt rains.\nT\nS\nFound."
    (message,) = user({"type": "document", "source": inner})
    assert message["content"] == [text("One."), SHOWN]


def test_calls_and_thinking_of_the_assistant_are_kept():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "…"}
    assert assistant(thought, hidden, text("Let me "), text("see."), USE) == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [CALL],
        }
    ]
    assert assistant(USE) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_tool_results_come_before_the_users_text():
    tool = {"role": "tool", "tool_call_id": "toolu_1", "content": "15 °C"}
    assert user(result("15 °C")) == [tool]
    assert user(result([text("15 °C")]), text("And now?")) == [
        tool,
        {"role": "user", "content": "And now?"},
    ]
    assert user(result()) == [tool | {"content": ""}]


def test_a_failed_tool_result_is_marked():
    assert user(result("no network", is_error=True))[0]["content"] == f"{FAILED}no network"


def test_tools_that_a_search_found_are_named():
    tools = [{"type": "tool_reference", "tool_name": name} for name in ("WebFetch", "Monitor")]
    sentence = "The tool WebFetch can be called.\nThe tool Monitor can be called."
    assert user(result(tools)) == [{"role": "tool", "tool_call_id": "toolu_1", "content": sentence}]


def test_tool_references_are_valid_in_results_only_and_need_a_valid_name():
    reference = {"type": "tool_reference", "tool_name": "WebFetch"}
    with pytest.raises(BadRequest, match="tool_reference"):
        user(reference)
    for name in ("", "x" * 129, "a\nb", 1, None):
        with pytest.raises(BadRequest) as refused:
            user(result([reference | {"tool_name": name}]))
        assert refused.value.param == "messages[0].content[0].content[0].tool_name"


def test_images_of_tool_results_follow_in_the_users_message():
    tool, message = user(result([text("A map."), IMAGE]), text("Where?"))
    assert tool["content"] == "A map.\n(Images follow: 1.)"
    head, image, rest = message["content"]
    assert (message["role"], image, rest) == ("user", SHOWN, text("Where?"))
    assert "toolu_1" in head["text"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (None, "messages[0].content"),
        (7, "messages[0].content"),
        ([7], "messages[0].content[0]"),
        ([{}], "messages[0].content[0].type"),
        ([{"type": "video"}], "messages[0].content[0].type"),
        ([USE], "messages[0].content[0].type"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([text("a"), {"type": "image"}], "messages[0].content[1].source.type"),
        ([{"type": "image", "source": 7}], "messages[0].content[0].source"),
        (
            [{"type": "image", "source": PNG | {"media_type": "image/svg+xml"}}],
            "messages[0].content[0].source.media_type",
        ),
        (
            [{"type": "image", "source": PNG | {"data": 'x" onload="'}}],
            "messages[0].content[0].source.data",
        ),
        (
            [{"type": "image", "source": PNG | {"data": "hé"}}],
            "messages[0].content[0].source.data",
        ),
        (
            [{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}],
            "messages[0].content[0].source.url",
        ),
        (
            [{"type": "image", "source": {"type": "url", "url": "x" * (MAX_URL_CHARACTERS + 1)}}],
            "messages[0].content[0].source.url",
        ),
        (
            [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}],
            "messages[0].content[0].source.type",
        ),
        (
            [{"type": "document", "source": PNG | {"media_type": "application/pdf"}}],
            "messages[0].content[0].source.type",
        ),
        (
            [{"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": True}}],
            "messages[0].content[0].citations",
        ),
        ([result(7)], "messages[0].content[0].content"),
        ([result([result()])], "messages[0].content[0].content[0].type"),
        ([result(is_error="yes")], "messages[0].content[0].is_error"),
        ([{"type": "tool_result"}], "messages[0].content[0].tool_use_id"),
    ],
)  # fmt: skip
def test_a_wrong_block_of_the_user_is_named(content, param):
    assert fault(content) == param


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (IMAGE, "type"),
        ({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}, "type"),
        (USE | {"input": "x"}, "input"),
        (USE | {"id": ""}, "id"),
        (USE | {"name": None}, "name"),
        ({"type": "thinking"}, "thinking"),
    ],
)
def test_a_wrong_block_of_the_assistant_is_named(block, param):
    assert fault([block], role="assistant") == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    "messages", [None, [], {}, "hi", [7], [{"role": "tool", "content": ""}], [{"content": "hi"}]]
)
def test_invalid_messages_are_refused(messages):
    param = outcome(lambda: messages_of({"messages": messages}))[1]
    assert param in ("messages", "messages[0]", "messages[0].role")


def test_the_system_prompt_may_hold_texts_only():
    assert fault("hi", system=[IMAGE]) == "system[0].type"
    assert fault("hi", system=7) == "system"
