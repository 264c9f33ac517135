"""Reading requests of every other kind from OpenAI's bodies; a wrong field is refused by its name."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canonical import audio, image, retrieval, tokenize
from router.errors import BadRequest
from router.requests import Kind, Request
from tests.router.canonical.hostile import ANYTHING, outcome

READERS: Mapping[Kind, Any] = {
    Kind.EMBEDDING: retrieval.read_embedding,
    Kind.IMAGE: image.read,
    Kind.IMAGE_EDIT: image.read_edit,
    Kind.SPEECH: audio.read_speech,
    Kind.SOUND: audio.read_sound,
    Kind.RERANK: retrieval.read_rerank,
    Kind.TOKENIZE: tokenize.read,
    Kind.STORE_SET: retrieval.read_store,
    Kind.STORE_DELETE: retrieval.read_store,
    Kind.STORE_GET: retrieval.read_store,
    Kind.STORE_FIND: retrieval.read_store,
}
PIXEL = "data:image/png;base64," + b64encode(b"\x89PNG").decode()
PLAIN: Mapping[Kind, Mapping[str, object]] = {
    Kind.EMBEDDING: {"input": "hi", "encoding_format": "float", "dimensions": 8},
    Kind.IMAGE: {
        "prompt": "a hat", "negative_prompt": "a cat", "size": "64x32", "width": 8, "height": 8, "n": 2, "seed": 1, "step": 3,
        "response_format": "url",
    },
    Kind.IMAGE_EDIT: {"prompt": "a hat", "image": PIXEL, "mask": PIXEL},
    Kind.SPEECH: {"input": "hi", "voice": "x", "response_format": "wav", "speed": 2, "language": "en"},
    Kind.SOUND: {
        "text": "rain", "duration_seconds": 2, "prompt_influence": 0.3, "do_sample": True, "response_format": "wav",
    },
    Kind.RERANK: {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    Kind.TOKENIZE: {"content": "hi", "add_special_tokens": True, "add_special": True},
    Kind.STORE_SET: {"keys": [[1, 2.5]], "values": ["a"]},
    Kind.STORE_DELETE: {"keys": [[1, 2.5]]},
    Kind.STORE_GET: {"keys": [[1, 2.5]]},
    Kind.STORE_FIND: {"key": [1, 2.5], "topk": 3},
}  # fmt: skip
FORM = "multipart/form-data; boundary=x"


def read(kind: Kind, **fields: object) -> Any:
    body = orjson.dumps({"model": "m", **fields})
    return READERS[kind](Request("r", kind, "m", body, "application/json"))


def form(*parts: tuple[str, str | bytes], kind: Kind = Kind.TRANSCRIPTION) -> Request:
    """Return a form request with texts as fields and bytes as files."""
    written = b""
    for name, content in parts:
        file = b'; filename="f"' if isinstance(content, bytes) else b""
        encoded = content if isinstance(content, bytes) else content.encode()
        head = b'--x\r\nContent-Disposition: form-data; name="%b"%b' % (name.encode(), file)
        written += head + b"\r\n\r\n" + encoded + b"\r\n"
    return Request("r", kind, "m", written + b"--x--", FORM)


@given(kind=st.sampled_from(sorted(READERS)), data=st.data(), value=ANYTHING)
def test_any_field_value_is_read_or_refused_by_the_name_of_the_field(
    kind: Kind, data: st.DataObject, value: Any
) -> None:
    plain = PLAIN[kind]
    name = data.draw(st.sampled_from(sorted(plain)))
    found, fault = outcome(lambda: read(kind, **plain | {name: value}))
    assert (found is None) != (fault is None)
    # The text may stand in any of several fields, so each of them may be named as missing.
    texts = tokenize.TEXTS if name in tokenize.TEXTS else (name,)
    assert fault is None or fault.partition("[")[0] in (*texts, "values")


@pytest.mark.parametrize("kind", READERS)
def test_only_fields_that_are_not_read_count_as_others(kind: Kind) -> None:
    found = read(kind, **PLAIN[kind])
    assert found == read(kind, **PLAIN[kind], user="ann", project="p")
    request = getattr(found, "image", found)
    if kind.value.startswith("stores/"):
        return
    assert request.others == {}
    again = read(kind, **PLAIN[kind], another=[1])
    assert getattr(again, "image", again).others == {"another": [1]}


class TestEmbedding:
    @pytest.mark.parametrize(
        ("given", "inputs"),
        [
            ("hi", ("hi",)),
            (["a", "b"], ("a", "b")),
            ([5, 0], ((5, 0),)),
            ([[5], [6, 7]], ((5,), (6, 7))),
            (["a", [1]], ("a", (1,))),
        ],
    )
    def test_takes_texts_or_token_numbers(self, given: object, inputs: object) -> None:
        assert read(Kind.EMBEDDING, input=given).inputs == inputs

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            (None, "input"),
            ("", "input"),
            ([], "input"),
            (["a", ""], "input[1]"),
            ([[1], [-1]], "input[1]"),
            ([1, True], "input"),
            ([1, 2**31], "input"),
            (["a"] * (retrieval.MAX_INPUTS + 1), "input"),
        ],
    )
    def test_other_inputs_are_refused(self, given: object, param: str) -> None:
        with pytest.raises(BadRequest) as refused:
            read(Kind.EMBEDDING, input=given)
        assert refused.value.param == param

    def test_is_returned_as_numbers_unless_base64_is_requested(self) -> None:
        assert not read(Kind.EMBEDDING, input="a").base64
        assert read(Kind.EMBEDDING, input="a", encoding_format="base64").base64


class TestImage:
    def test_has_a_prompt_and_a_negative_prompt(self) -> None:
        both = read(Kind.IMAGE, prompt="a hat | a cat")
        assert (both.prompt, both.negative) == ("a hat", "a cat")
        request = read(Kind.IMAGE, prompt="a|b", negative_prompt="c")
        assert (request.prompt, request.negative) == ("a", "c")
        alone = read(Kind.IMAGE, prompt="a hat")
        assert (alone.prompt, alone.negative) == ("a hat", "")

    def test_width_and_height_override_size(self) -> None:
        def size(**fields: object) -> tuple[object, object]:
            found = read(Kind.IMAGE, prompt="a", **fields)
            return found.width, found.height

        assert size() == size(size="auto") == (None, None)
        assert size(size="64x32") == (64, 32)
        assert size(size="64x32", width=8, height=16) == (8, 16)
        assert size(size="64x32", height=16) == (64, 16)
        for wrong in ("64", "0x1", "9000x1", "99999x1", 64, "64x32x1"):
            with pytest.raises(BadRequest) as refused:
                size(size=wrong)
            assert refused.value.param == "size"

    def test_is_returned_inline_unless_a_url_is_requested(self) -> None:
        assert read(Kind.IMAGE, prompt="a").base64
        assert not read(Kind.IMAGE, prompt="a", response_format="url").base64

    def test_may_be_made_from_images_in_json(self) -> None:
        link = "https://example.org/a.png"
        edit = read(Kind.IMAGE_EDIT, prompt="a", image=[PIXEL, link, {"image_url": PIXEL}])
        assert edit.sources == (b"\x89PNG", link, b"\x89PNG")
        assert (edit.mask, edit.image.prompt) == (None, "a")

    def test_may_be_made_from_images_in_a_form(self) -> None:
        request = form(
            ("prompt", "a"), ("image", b"1"), ("mask", b"2"), ("n", "2"), kind=Kind.IMAGE_EDIT
        )
        edit = image.read_edit(request)
        assert (edit.sources, edit.mask, edit.image.n) == ((b"1",), b"2", 2)
        several = form(("prompt", "a"), ("image[]", b"1"), ("image[]", b"2"), kind=Kind.IMAGE_EDIT)
        assert image.read_edit(several).sources == (b"1", b"2")

    @pytest.mark.parametrize(
        "wrong", [None, "", "file:///etc/passwd", "/etc/passwd", "data:image/png;base64,!", 7, [7], "ftp://h/x", "http://h/\n"]
    )  # fmt: skip
    def test_other_sources_are_refused(self, wrong: object) -> None:
        with pytest.raises(BadRequest) as refused:
            read(Kind.IMAGE_EDIT, prompt="a", image=wrong)
        assert refused.value.param == "image"


class TestTranscription:
    def test_reads_the_file_of_a_form(self) -> None:
        transcription = audio.read_transcription(
            form(
                ("model", "m"), ("file", b"RIFF"), ("language", "de"), ("response_format", "srt"), ("temperature", "0.5"),
                ("timestamp_granularities[]", "segment"), ("timestamp_granularities[]", "word"), ("prompt", "hi"),
            )
        )  # fmt: skip
        assert transcription == audio.Transcription(
            b"RIFF", "de", "hi", 0.5, "srt", words=True, translate=False, others={}
        )

    def test_is_a_translation_on_the_translations_path(self) -> None:
        transcription = audio.read_transcription(form(("file", b"x"), kind=Kind.TRANSLATION))
        assert (transcription.translate, transcription.format, transcription.words) == (
            True,
            "json",
            False,
        )

    @pytest.mark.parametrize(
        ("parts", "param"),
        [
            ([("file", "a text")], "file"),
            ([("file", b"")], "file"),
            ([("file", b"1"), ("file", b"2")], "file"),
            ([("file", b"1"), ("response_format", "doc")], "response_format"),
            ([("file", b"1"), ("temperature", "warm")], "temperature"),
            ([("file", b"1"), ("temperature", "7")], "temperature"),
            ([("file", b"1"), ("language", "x" * 99)], "language"),
            ([("file", b"1"), ("timestamp_granularities[]", "year")], "timestamp_granularities"),
        ],
    )
    def test_with_a_wrong_field_is_refused(self, parts: Any, param: str) -> None:
        with pytest.raises(BadRequest) as refused:
            audio.read_transcription(form(*parts))
        assert refused.value.param == param

    def test_names_the_fields_that_it_does_not_read(self) -> None:
        others = audio.read_transcription(
            form(("file", b"x"), ("stream", "true"), ("q", "1"))
        ).others
        assert others == {"stream": True, "q": "1"}


def test_a_voice_may_be_an_object() -> None:
    assert read(Kind.SPEECH, input="a", voice={"id": "v"}).voice == "v"
    assert read(Kind.SPEECH, input="a").format is None


def test_documents_are_texts_or_objects_with_a_text() -> None:
    rerank = read(Kind.RERANK, query="q", documents=["a", {"text": "b", "id": 1}])
    assert (rerank.documents, rerank.with_documents) == (("a", "b"), True)
    with pytest.raises(BadRequest) as refused:
        read(Kind.RERANK, query="q", documents=["a", {"body": "b"}])
    assert refused.value.param == "documents[1]"


@pytest.mark.parametrize("name", tokenize.TEXTS)
def test_a_text_to_tokenize_stands_in_one_of_three_fields(name: str) -> None:
    assert read(Kind.TOKENIZE, **{name: "hi"}).text == "hi"
    with pytest.raises(BadRequest):
        read(Kind.TOKENIZE, **dict.fromkeys(tokenize.TEXTS, "hi"))
    with pytest.raises(BadRequest):
        read(Kind.TOKENIZE)


class TestStore:
    def test_takes_keys_and_values_as_columns(self) -> None:
        keys = ((1.0, 2.5), (0.0, -1.0))
        lists = [list(key) for key in keys]
        assert read(Kind.STORE_SET, keys=lists, values=["a", ""]) == retrieval.Set(keys, ("a", ""))
        assert read(Kind.STORE_GET, keys=lists) == retrieval.Get(keys)
        assert read(Kind.STORE_DELETE, keys=lists) == retrieval.StoreDelete(keys)
        assert read(Kind.STORE_FIND, key=[1, 2.5]) == retrieval.Find(
            (1.0, 2.5), retrieval.USUAL_FOUND
        )

    @pytest.mark.parametrize(
        ("said", "param"),
        [
            ({"keys": [[1]], "values": []}, "values"),
            ({"keys": [[1]], "values": ["a", "b"]}, "values"),
            ({"keys": [[1], [2]], "values": ["a", 7]}, "values[1]"),
            ({"keys": [[1], []], "values": ["a", "b"]}, "keys[1]"),
            ({"keys": [[1], [1, 2]], "values": ["a", "b"]}, "keys[1]"),
            ({"keys": [[True]], "values": ["a"]}, "keys[0]"),
            ({"keys": [[1e39]], "values": ["a"]}, "keys[0]"),
            ({"keys": "ab", "values": ["a"]}, "keys"),
        ],
    )
    def test_other_columns_are_refused(self, said: Mapping[str, object], param: str) -> None:
        with pytest.raises(BadRequest) as refused:
            read(Kind.STORE_SET, **said)
        assert refused.value.param == param
