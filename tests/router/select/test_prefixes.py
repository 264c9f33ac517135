"""Laws of a conversation's beginnings."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policies.prefix import BLOCK, MAX_BYTES, MAX_LINKS, NONE, conversation
from router.requests import Request
from tests.router.world import chat

messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=5)), max_size=8
)
LONG = "word " * BLOCK


def talk(said: object, model: str = "m", **more: object) -> Request:
    return chat(model, body=orjson.dumps({"model": model, "messages": said, **more}))


def user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def system(words: str) -> dict[str, str]:
    return {"role": "system", "content": words}


def links(request: Request) -> list[bytes]:
    return [beginning.link for beginning in conversation(request).own]


@given(messages, messages, messages)
def test_two_chains_are_equal_exactly_as_far_as_their_conversations(
    common: list[object], one: list[object], other: list[object]
) -> None:
    first, second = [*common, *one], [*common, *other]
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    a, b = links(talk(first)), links(talk(second))
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b[same:])


def test_the_same_words_to_another_model_or_with_other_tools_are_another_conversation() -> None:
    said = [user("hi")]
    assert not set(links(talk(said, "a"))) & set(links(talk(said, "b")))
    assert not set(links(talk(said))) & set(links(talk(said, tools=[{"type": "function"}])))


def test_what_the_system_says_is_nobodys_own_beginning_and_counts_in_the_size() -> None:
    short, long = (conversation(talk([system(s), user("hi")])) for s in ("be brief", LONG))
    assert len(short.own) == len(long.own) == 1
    assert long.size > len(LONG) > short.size
    several = conversation(talk([system("a"), {"role": "developer", "content": "b"}, user("hi")]))
    assert [b.messages for b in several.own] == [3]


def test_the_opening_ends_with_the_first_words_of_a_user() -> None:
    said = [system(LONG), user(LONG), user("so?")]
    whole = conversation(talk(said))
    assert whole.own[whole.opening].messages == 2
    assert whole.key == conversation(talk(said[:2])).key
    assert whole.key != conversation(talk([said[0], said[2]])).key


def test_where_only_the_system_speaks_its_last_words_are_the_opening() -> None:
    assert conversation(talk([system("a")])).key != conversation(talk([system("b")])).key


def test_long_messages_are_equal_block_by_block() -> None:
    one, other = (links(talk([user(LONG + question)])) for question in ("why?", "what for?"))
    blocks = len(LONG) // BLOCK
    assert one[:blocks] == other[:blocks]
    assert one[-1] != other[-1]
    assert blocks + 1 <= len(one) <= blocks + 2


@pytest.mark.parametrize("body", [b"[]", b"1", b'{"messages":{}}', b'{"messages":[]}', b'{"prompt":[1]}'])  # fmt: skip
def test_what_is_no_conversation_has_no_beginnings(body: bytes) -> None:
    assert conversation(chat(body=body)) == NONE


@pytest.mark.parametrize("depth", [300, 1_000])
@pytest.mark.parametrize(
    "body", [b'{"messages":[{"content":%b}]}', b'{"messages":["hi"],"tools":%b}']
)
def test_what_is_nested_too_deep_is_no_conversation(body: bytes, depth: int) -> None:
    assert conversation(chat(body=body % (b"[" * depth + b"]" * depth))) == NONE


def test_a_prompt_is_a_conversation_of_one_message() -> None:
    assert conversation(chat(body=b'{"prompt":"once upon a time"}')).messages == 1


def test_what_is_looked_at_is_bounded() -> None:
    assert len(links(talk(["x"] * 10_000))) == MAX_LINKS
    assert conversation(talk(["x" * MAX_BYTES])) == NONE
