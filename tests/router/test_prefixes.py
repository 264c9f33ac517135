"""Laws of a conversation's chain."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from router.prefixes import MAX_BYTES, MAX_LINKS, chain
from router.requests import Request
from tests.router.world import chat

messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=5)), max_size=8
)


def talk(said: object, model: str = "m") -> Request:
    return chat(model, body=orjson.dumps({"model": model, "messages": said}))


@given(messages, messages, messages)
def test_two_chains_are_equal_exactly_as_far_as_their_conversations(
    common: list[object], one: list[object], other: list[object]
) -> None:
    first, second = [*common, *one], [*common, *other]
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    a, b = chain(talk(first)), chain(talk(second))
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b[same:])


def test_the_same_words_to_another_model_are_another_conversation() -> None:
    assert not set(chain(talk(["hi"], "a"))) & set(chain(talk(["hi"], "b")))


def test_what_is_no_conversation_has_no_chain() -> None:
    for body in (b"[]", b"1", b'{"messages":{}}', b'{"messages":[]}', b'{"prompt":[1]}'):
        assert chain(chat(body=body)) == ()
    assert len(chain(chat(body=b'{"prompt":"once upon a time"}'))) == 1


def test_what_is_looked_at_is_bounded() -> None:
    assert len(chain(talk(["x"] * 10_000))) == MAX_LINKS
    assert chain(talk(["x" * MAX_BYTES])) == ()
