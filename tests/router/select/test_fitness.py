"""Laws of a replica's fitness for a request: its type, its context and its media."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Ability, ModelType, Service
from router.requests import MODEL_KINDS, SERVICES, STORES, Kind, Request, Target
from router.select.fitness import (
    MADE_FOR,
    MAX_BYTES,
    MOST_BYTES,
    OWN_KINDS,
    USUAL_BYTES,
    MediaNeeds,
    RequestLength,
    serves,
)
from tests.router.world import chat


def length(**fields: object) -> RequestLength:
    return RequestLength(chat(body=orjson.dumps({"model": "m", **fields})))


def user(content: object) -> list[object]:
    return [{"role": "user", "content": content}]


def service(context: int) -> Service:
    return Service("p", "m", context=context)


def test_every_type_serves_some_kind_and_text_serves_every_kind() -> None:
    assert set(MADE_FOR) == set(ModelType)
    assert all(MADE_FOR.values())
    assert all(serves(Service("p", "m"), kind) for kind in MODEL_KINDS)
    assert not any(serves(Service("p", "m"), kind) for kind in SERVICES)
    assert not serves(Service("p", "m", type=ModelType.EMBEDDING), Kind.CHAT)
    assert serves(Service("p", "m", type=ModelType.EMBEDDING), Kind.EMBEDDING)
    assert {
        kind for kind in Kind if serves(Service("p", "m", type=ModelType.STORE), kind)
    } == STORES


def test_a_worker_of_one_endpoint_serves_a_subset_of_the_kinds_of_its_type() -> None:
    assert set(OWN_KINDS) == set(ModelType)
    for type_, kinds in OWN_KINDS.items():
        alone = Service("p", "m", type=type_, abilities=int(Ability.OWN_PATH | Ability.TOOLS))
        assert {kind for kind in Kind if serves(alone, kind)} == kinds
        assert kinds <= MADE_FOR[type_]


def test_a_text_to_tokenize_has_no_length() -> None:
    body = orjson.dumps({"model": "m", "prompt": "x" * 80_000})
    assert RequestLength(chat(kind=Kind.TOKENIZE, body=body)).minimum_tokens == 0


@pytest.mark.parametrize("body", [b"", b"no JSON"])
def test_a_request_to_a_service_has_no_length_and_may_have_no_body(body: bytes) -> None:
    request = Request(
        id="r-1",
        kind=Kind.BATCH,
        model="m",
        body=body,
        content_type="application/json",
        target=Target("openai", "GET", "/v1/batches"),
    )
    assert RequestLength(request).minimum_tokens == 0


def test_the_length_is_the_texts_bytes_per_token_plus_the_answers_tokens() -> None:
    estimate = length(messages=user("x" * 8_000), max_tokens=500)
    assert estimate.minimum_tokens == 8_000 // MOST_BYTES + 500
    assert estimate.likely_tokens == 8_000 // USUAL_BYTES + 500
    assert estimate.exceeds(service(estimate.minimum_tokens - 1))
    assert not estimate.exceeds(service(estimate.minimum_tokens))
    assert estimate.may_exceed_context(service(estimate.likely_tokens - 1))
    assert not estimate.may_exceed_context(service(estimate.likely_tokens))


def test_nothing_is_too_long_for_an_unknown_context() -> None:
    assert not length(messages=user("x" * 100_000)).exceeds(service(0))


def test_images_count_nothing_and_texts_beside_them_do() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    content = [{"type": "text", "text": "w" * 800}, image]
    assert length(messages=user(content)).minimum_tokens == 100


def test_tools_count_in_the_length() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 8_000}}]
    assert length(messages=user("hi"), tools=tools).minimum_tokens > 1_000


@pytest.mark.parametrize(
    ("said", "least"),
    [
        ({"prompt": "x" * 800}, 100),
        ({"prompt": ["x" * 800, "x" * 1_600]}, 200),
        ({"prompt": [1] * 300}, 300),
        ({"input": [[1] * 300, [1] * 400]}, 400),
        ({"input": "x" * 80, "max_completion_tokens": 7}, 17),
        ({"input": None, "messages": "x", "max_tokens": -5}, 0),
        ({"max_tokens": True}, 1),
        ({"max_tokens": "many"}, 0),
    ],
)
def test_the_longest_of_several_inputs_counts(said: dict[str, object], least: int) -> None:
    assert length(**said).minimum_tokens == least


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'{"messages":"' + b"x" * MAX_BYTES + b'"}'])  # fmt: skip
def test_a_body_that_is_no_request_or_huge_has_no_length(body: bytes) -> None:
    assert RequestLength(chat(body=body)).minimum_tokens == 0


@pytest.mark.parametrize("depth", [10, 300, 1_000])
@pytest.mark.parametrize("name", ["messages", "prompt", "input", "tools"])
def test_deeply_nested_bodies_are_measured_too(name: str, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    assert (
        RequestLength(chat(body=b'{"model":"m","%b":%b}' % (name.encode(), deep))).minimum_tokens
        < depth
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(["messages", "prompt", "input", "tools", "max_tokens", "content"])


@given(st.dictionaries(FIELDS, JSON | st.lists(st.dictionaries(FIELDS, JSON), max_size=3)))
def test_any_request_has_a_length(said: dict[str, object]) -> None:
    assert 0 <= length(**said).minimum_tokens <= length(**said).likely_tokens


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
READS = Service("p", "m", abilities=Ability.TEXT_IN | Ability.TEXT_OUT)
SEES = Service("p", "m", abilities=Ability.TEXT_IN | Ability.IMAGE_IN)


def media(content: object, *, kind: Kind = Kind.CHAT) -> MediaNeeds:
    return MediaNeeds(chat(kind=kind, body=orjson.dumps({"model": "m", "messages": user(content)})))


def test_media_that_a_model_does_not_take_are_named() -> None:
    assert media([IMAGE]).missing(READS) == "image"
    assert media([IMAGE, SOUND, IMAGE]).missing(READS) == "image and audio"
    assert media([IMAGE, SOUND]).missing(SEES) == "audio"
    assert media([IMAGE]).missing(SEES) == ""
    assert media("words").missing(READS) == ""


def test_no_media_are_missing_if_the_models_inputs_are_unknown() -> None:
    assert media([IMAGE]).missing(service(0)) == ""
    only_out = Service("p", "m", abilities=Ability.TEXT_OUT | Ability.TOOLS)
    assert media([IMAGE]).missing(only_out) == ""


def test_only_chats_hold_media() -> None:
    assert media([IMAGE], kind=Kind.COMPLETION).missing(READS) == ""


def test_a_media_part_is_found_however_the_json_is_spaced() -> None:
    body = b'{"messages":[{"content":[{"image_url":{"url":"u"},\n  "type" :\t"image_url"}]}]}'
    assert MediaNeeds(chat(body=body)).missing(READS) == "image"


@given(st.text())
def test_texts_that_look_like_media_parts_are_none(words: str) -> None:
    text = f'{words}"type":"image_url"{words}{{"type": "input_audio"}}'
    for written in (text, [{"type": "text", "text": text}], {"deep": text}):
        assert media(written).missing(READS) == ""
