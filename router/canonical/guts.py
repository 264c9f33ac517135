"""Request for a model's inner state. RemoteLLM's own kind of request; nobody else has it."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.canonical.values import flag, needed, others, whole
from router.openai.body import object_of
from router.requests import Request

MAX_TEXT_CHARACTERS = 1_000_000
"""The longest text whose tokens are looked at."""

MAX_NUMBERS = 16_384
"""The most numbers of one embedding."""

MAX_NEXT = 1_000
"""The most tokens that may come next."""

READ = frozenset({"model", "models", "stream", "prompt", "fft_embeddings", "embedding_truncation", "top_k"})  # fmt: skip
"""Fields that are read here."""


@dataclass(frozen=True, slots=True)
class Guts:
    """A text; `fft` has the high frequencies of its embeddings, of which `numbers` are told. `next` tokens may come after it."""

    text: str
    fft: bool
    numbers: int
    next: int
    others: Mapping[str, object]


def read(request: Request) -> Guts:
    """Read a request for a model's inner state; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    fft = flag(fields, "fft_embeddings")
    numbers = whole(fields, "embedding_truncation", 0, MAX_NUMBERS)
    following = whole(fields, "top_k", 0, MAX_NEXT)
    return Guts(
        text=needed(fields, "prompt", MAX_TEXT_CHARACTERS),
        fft=fft is not False,
        numbers=20 if numbers is None else numbers,
        next=5 if following is None else following,
        others=others(fields, READ),
    )
