"""Laws of the prefixes of conversations."""

import json
from typing import Any

import orjson
import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from router.openai import prefixes
from router.openai.prefixes import (
    BLOCK,
    CONVERSATION,
    MAX_BYTES,
    MAX_LINKS,
    MIN_BYTES,
    NONE,
    Prefixes,
    prefixes_of,
)
from tests.router.openai.conftest import Scanner

messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=5)), max_size=8
)
LONG = "word " * BLOCK


def talk(messages: object, **more: object) -> Prefixes:
    return read({"messages": messages, **more})


def read(fields: dict[str, object], size: int = 0) -> Prefixes:
    return prefixes_of(fields, max(size or len(orjson.dumps(fields, default=str)), MIN_BYTES))


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def digests(conversation: Prefixes) -> list[bytes]:
    return [prefix.digest for prefix in conversation.chain]


@given(messages, messages, messages)
def test_two_chains_are_equal_as_far_as_their_conversations_are(
    common: list[object], one: list[object], other: list[object]
) -> None:
    first, second = [*common, *one], [*common, *other]
    same = 0
    for one_said, other_said in zip(
        map(orjson.dumps, first), map(orjson.dumps, second), strict=False
    ):
        if one_said != other_said:
            break
        same += 1
    a, b = digests(talk(first)), digests(talk(second))
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b[same:])


WORDS = st.text(max_size=5) | st.sampled_from(['"\\\n/', "x" * 5000, "\x01", "é☃"])
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", None, 7, []]),
        "content": WORDS | st.lists(WORDS, max_size=2),
        "n": st.integers(-1, 1) | st.floats(allow_nan=False),
    },
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.none() | WORDS | st.lists(MESSAGES | WORDS, max_size=5),
        "prompt": st.none() | WORDS | st.lists(WORDS, max_size=2),
        "tools": st.none() | st.lists(MESSAGES, max_size=2),
    },
)


@given(FIELDS, st.booleans())
@example(fields={"messages": [{"role": "user", "content": "a"}] * 2000}, spaced=False)
def test_a_conversation_in_json_has_the_prefixes_of_its_values(
    scanner: Scanner, fields: dict[str, Any], spaced: bool
) -> None:
    body = json.dumps(fields).encode() if spaced else orjson.dumps(fields)
    found = scanner.members(body, scanner.wanted((), CONVERSATION, (), (), None))
    if found is not None:
        with pytest.MonkeyPatch.context() as patched:
            if str(prefixes.__file__).endswith(".py"):
                patched.setattr(prefixes, "elements", scanner.elements)
                patched.setattr(prefixes, "_ROLE", scanner.wanted(("role",), (), (), (), None))
            assert read(found, len(body)) == read(orjson.loads(body), len(body))


def test_of_many_messages_only_the_first_are_looked_at() -> None:
    many = talk([*[{"role": "user"}] * 2000, {"role": "assistant", "content": float}])
    assert len(many.chain) == MAX_LINKS
    assert not many.goes_on


@pytest.mark.parametrize("role", [[], {}, 7, None])
def test_a_role_may_be_anything(role: object) -> None:
    conversation = talk([{"role": role, "content": LONG}])
    assert conversation.shared == 0
    assert not conversation.goes_on


def test_hashes_are_those_of_the_protocol() -> None:
    """They are compared between nodes: docs/protocol.md says how they are computed."""
    written = orjson.dumps(user("a" * 5000))
    tools = blake3(b"null").digest(16)
    first = blake3(tools + written[:4096]).digest(16)
    second = blake3(first + written[4096:]).digest(16)
    assert digests(talk([user("a" * 5000)])) == [first, second]
    assert second.hex() == "cc17f3466462928fc4243f81b801093e"


def test_the_same_words_with_other_tools_are_another_conversation() -> None:
    messages = [user("hi")]
    assert not set(digests(talk(messages))) & set(
        digests(talk(messages, tools=[{"type": "function"}]))
    )


def test_system_messages_are_shared_and_count_in_the_size() -> None:
    short, long = (talk([system(s), user("hi")]) for s in ("be brief", LONG))
    assert len(short.chain) - short.shared == len(long.chain) - long.shared == 1
    assert long.size > len(LONG) > short.size
    several = talk([system("a"), {"role": "developer", "content": "b"}, user("hi")])
    assert (several.shared, len(several.chain)) == (2, 3)


def test_the_key_covers_messages_up_to_the_first_of_a_user() -> None:
    messages = [system(LONG), user(LONG), user("so?")]
    assert talk(messages).key == talk(messages[:2]).key
    assert talk(messages).key != talk([messages[0], messages[2]]).key


def test_the_key_covers_system_messages_if_there_are_no_others() -> None:
    assert talk([system("a")]).key != talk([system("b")]).key


def test_a_conversation_goes_on_once_it_has_an_answer() -> None:
    messages = [user("hi"), {"role": "assistant", "content": "hello"}, user("and?")]
    assert talk(messages).goes_on
    assert not talk(messages[:1]).goes_on


def test_long_messages_are_equal_block_by_block() -> None:
    one, other = (digests(talk([user(LONG + question)])) for question in ("why?", "what for?"))
    blocks = len(LONG) // BLOCK
    assert one[:blocks] == other[:blocks]
    assert one[-1] != other[-1]
    assert blocks + 1 <= len(one) <= blocks + 2


@pytest.mark.parametrize("fields", [{}, {"messages": {}}, {"messages": []}, {"prompt": [1]}])
def test_fields_without_a_conversation_have_no_prefixes(fields: dict[str, object]) -> None:
    assert read(fields) == NONE
    assert read(fields).key == b""


@pytest.mark.parametrize("depth", [300, 1_000])
@pytest.mark.parametrize(
    "body", [b'{"messages":[{"content":%b}]}', b'{"messages":["hi"],"tools":%b}']
)
def test_fields_that_are_nested_too_deep_have_no_prefixes(body: bytes, depth: int) -> None:
    deep = body % (b"[" * depth + b"]" * depth)
    assert prefixes_of(orjson.loads(deep), max(len(deep), MIN_BYTES)) == NONE


def test_a_prompt_is_a_conversation_of_one_message() -> None:
    assert len(read({"prompt": "once upon a time"}).chain) == 1


def test_the_bytes_and_links_of_a_chain_are_bounded() -> None:
    assert len(talk(["x"] * 10_000).chain) == MAX_LINKS
    assert talk(["x" * MAX_BYTES]) == NONE
    assert prefixes_of({"messages": ["hi"]}, MIN_BYTES - 1) == NONE
