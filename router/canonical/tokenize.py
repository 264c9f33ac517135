"""Request for the tokens of a text."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.canonical.values import read_flag, read_text, unread_fields
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.requests import Request

MAX_TEXT_CHARACTERS = 16_000_000
"""The longest text that is tokenized."""

WITH_PIECES, WITH_STRINGS = "with_pieces", "return_token_strs"
"""The fields that request the text of each token: llama.cpp's and vLLM's. Each has its own form of the answer."""

SHAPING = frozenset({"messages", WITH_PIECES, WITH_STRINGS})
"""Fields that are not read, and without which the answer would be of another kind."""

TEXTS = ("content", "prompt", "input")
"""The fields that may contain the text: that of LocalAI and llama.cpp, vLLM's, and OpenAI's."""

SPECIALS = ("add_special_tokens", "add_special")
"""The fields that request the tokens which frame a text too: vLLM's and llama.cpp's."""

READ = frozenset({"model", "models", "stream", *TEXTS, *SPECIALS})
"""Fields that are read here."""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """A text to tokenize; `special` requests the framing tokens, `None` leaves them to the worker."""

    text: str
    special: bool | None
    others: Mapping[str, object]

    @property
    def texts(self) -> bool:
        """Whether the text of each token is requested too."""
        return any(self.others.get(name) is True for name in (WITH_PIECES, WITH_STRINGS))


def read(request: Request) -> Tokenize:
    """Read a request for tokens; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    present = [name for name in TEXTS if fields.get(name) is not None]
    if len(present) != 1:
        choices = ", ".join(f"`{name}`" for name in TEXTS)
        raise BadRequest(f"one of {choices} must be a text", param=(*present[1:], TEXTS[0])[0])
    first, second = (read_flag(fields, name) for name in SPECIALS)
    return Tokenize(
        text=read_text(fields, present[0], MAX_TEXT_CHARACTERS),
        special=second if first is None else first,
        others=unread_fields(fields, READ),
    )
