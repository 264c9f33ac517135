"""Chat templates for workers that take one text and have no template of their own, or none that works.

A message cannot forge another one: the template's marks are removed from its text. With a template that has no marks
(`plain`), a text may look like the next message, as in any transcript.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from router.errors import BadRequest
from router.workers import Template

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as one text, which the answer continues; the answer ends before any of `stops`."""

    prompt: str
    stops: tuple[str, ...]


def rendered(template: Template, messages: Sequence[Message]) -> Rendered:
    """Return a chat as one text; raise `BadRequest` for anything except text. A template that is not known here means ChatML."""
    write, marks, stops = _TEMPLATES.get(template, _TEMPLATES["chatml"])
    written = [(_clean(str(m.get("role")), marks), _clean(text_of(m), marks)) for m in messages]
    return Rendered(write(written), stops)


def text_of(message: Message) -> str:
    """Return the text of a message; raise `BadRequest` if it contains more than text."""
    match message.get("content"):
        case str(text):
            return text
        case [*parts]:
            return "".join(map(_text_of_part, parts))
    return ""


def _text_of_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise BadRequest("only texts can become one prompt", param="messages")


def _clean(text: str, marks: Sequence[str]) -> str:
    for mark in marks:
        # A blank takes its place, so that the text around it does not join to another mark.
        text = text.replace(mark, " ")
    return text


Written = Sequence[tuple[str, str]]


def _chatml(written: Written) -> str:
    turns = (f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in written)
    return "".join(turns) + "<|im_start|>assistant\n"


def _llama3(written: Written) -> str:
    # The mark of the beginning is missing: tokenizers add it themselves.
    turns = (
        f"<|start_header_id|>{role}<|end_header_id|>\n\n{text.strip()}<|eot_id|>"
        for role, text in written
    )
    return "".join(turns) + "<|start_header_id|>assistant<|end_header_id|>\n\n"


def _plain(written: Written) -> str:
    turns = (text if role == "system" else f"{role.capitalize()}: {text}" for role, text in written)
    return "\n\n".join((*turns, "Assistant:"))


_TEMPLATES: Mapping[str, tuple[Callable[[Written], str], tuple[str, ...], tuple[str, ...]]] = {
    "chatml": (_chatml, ("<|im_start|>", "<|im_end|>"), ("<|im_end|>",)),
    "llama3": (
        _llama3,
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        ("<|eot_id|>", "<|end_of_text|>"),
    ),
    "plain": (_plain, (), ("\nUser:",)),
}
"""By template, the function that writes a chat, the marks, and the stop strings."""
