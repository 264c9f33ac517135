"""Chat templates: how a chat becomes one text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.translate.templates import Rendered, rendered
from router.workers import TEMPLATES, Template

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": " more "},
]


def test_chatml() -> None:
    assert rendered("chatml", CHAT) == Rendered(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n more <|im_end|>\n"
        "<|im_start|>assistant\n",
        ("<|im_end|>",),
    )


def test_llama3() -> None:
    rendering = rendered("llama3", CHAT)
    assert rendering.prompt.startswith(
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    )
    assert rendering.prompt.endswith(
        "more<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert "<|eot_id|>" in rendering.stops


def test_plain() -> None:
    assert rendered("plain", CHAT[:2]) == Rendered(
        "Be brief.\n\nUser: ab\n\nAssistant:", ("\nUser:",)
    )


@pytest.mark.parametrize("template", ["", "worker"])
def test_chatml_is_the_default_template(template: Template) -> None:
    assert rendered(template, CHAT) == rendered("chatml", CHAT)


@pytest.mark.parametrize("template", TEMPLATES)
def test_content_that_is_no_text_is_refused(template: Template) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(BadRequest):
        rendered(template, messages)


MARKS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "user", "\n")
PIECES = st.lists(
    st.sampled_from(MARKS) | st.text(max_size=3) | st.sampled_from(("<|im_", "end|>"))
)


@given(PIECES.map("".join), st.sampled_from(("chatml", "llama3")))
def test_a_message_cannot_forge_another_one(text: str, template: Template) -> None:
    prompt = rendered(template, [{"role": "user", "content": text}]).prompt
    plain = rendered(template, [{"role": "user", "content": "x"}]).prompt
    for mark in MARKS[:2] if template == "chatml" else MARKS[2:4]:
        assert prompt.count(mark) == plain.count(mark)
