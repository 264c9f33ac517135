"""Log probabilities of tokens: writer and parser for OpenAI's two forms of `logprobs`.

A chat lists its tokens as objects, a completion in columns. Both forms are extended by token ids, which OpenAI's own lack: `id`
as llama.cpp calls it, and the columns `token_ids` and `top_token_ids`.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

MAX_LIKELIEST = 20
"""The most tokens that are reported for one position, besides the sampled one."""

_MOST_ID = 2**32 - 1
_BESIDE = ("token_ids", "top_logprobs", "top_token_ids")


@dataclass(frozen=True, slots=True)
class Token:
    """One token, the natural logarithm of its probability, and the likeliest at its position; `None` is not reported."""

    text: str
    logprob: float | None = None
    id: int | None = None
    likeliest: tuple["Token", ...] = ()


def write_chat_logprobs(tokens: Sequence[Token]) -> dict[str, object] | None:
    """Write the `logprobs` of a chat's choice."""
    if not tokens:
        return None
    return {"content": list(map(write_token, tokens)), "refusal": None}


def write_token(token: Token) -> dict[str, object]:
    """Write one token of a chat."""
    return {**_object(token), "top_logprobs": [_object(other) for other in token.likeliest]}


def write_completion_logprobs(tokens: Sequence[Token], start: int) -> dict[str, object] | None:
    """Write the `logprobs` of a completion's choice; its text has `start` characters before the first token."""
    if not tokens:
        return None
    offsets = [start]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token.text))
    payload: dict[str, object] = {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{o.text: o.logprob for o in token.likeliest} for token in tokens],
        "text_offset": offsets,
    }
    if all(token.id is not None for token in tokens):
        payload["token_ids"] = [token.id for token in tokens]
        payload["top_token_ids"] = [[other.id for other in token.likeliest] for token in tokens]
    return payload


def read(value: object) -> tuple[Token, ...]:
    """Read `logprobs` of either form. Anything else yields none: a text is complete without them."""
    try:
        match value:
            case {"content": [*tokens]}:
                return tuple(map(_listed, tokens))
            case {"tokens": [*texts], "token_logprobs": [*logprobs], **rest}:
                return tuple(_columns(texts, logprobs, rest))
    except (TypeError, ValueError):
        pass
    return ()


def token(text: str, logprob: object, id_: object) -> Token:
    """Return a token from a worker's values; one that is no number counts as not reported."""
    return Token(text, _number(logprob), _id(id_))


class HeldTokens:
    """Buffer for the tokens of a text that is shown in pieces, later than it arrives: a token goes out with its text."""

    __slots__ = ("_room", "_tokens", "start")

    def __init__(self, start: int = 0) -> None:
        self._tokens: deque[Token] = deque()
        self._room = 0
        self.start = start
        """Characters before the next token."""

    def feed(self, tokens: Iterable[Token], shown: int) -> tuple[Token, ...]:
        """Take in tokens, and the number of characters newly shown; return the tokens whose text is now shown."""
        self._tokens += tokens
        self._room += shown
        ready = []
        while self._tokens and len(self._tokens[0].text) <= self._room:
            ready.append(self._tokens.popleft())
            self._room -= len(ready[-1].text)
        self.start += sum(len(token.text) for token in ready)
        return tuple(ready)

    def flush(self) -> tuple[Token, ...]:
        """Return the tokens left once a text has ended by itself: the texts of its tokens need not add up to it."""
        remaining = tuple(self._tokens)
        self._tokens.clear()
        return remaining


def _object(token: Token) -> dict[str, object]:
    payload: dict[str, object] = {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode(errors="replace")),
    }
    return payload if token.id is None else {"id": token.id, **payload}


def _listed(value: object) -> Token:
    drawn = _alone(value)
    likeliest = value.get("top_logprobs") if isinstance(value, dict) else None
    alternatives = likeliest[:MAX_LIKELIEST] if isinstance(likeliest, list) else []
    return replace(drawn, likeliest=tuple(map(_alone, alternatives))) if alternatives else drawn


def _alone(value: object) -> Token:
    match value:
        case {"token": str(text), **rest}:
            return token(text, rest.get("logprob"), rest.get("id"))
    raise ValueError("no token")


def _columns(
    texts: Sequence[object], logprobs: Sequence[object], rest: Mapping[object, object]
) -> Iterable[Token]:
    beside = (_column(rest.get(name), len(texts)) for name in _BESIDE)
    for text, logprob, id_, likeliest, ids in zip(texts, logprobs, *beside, strict=True):
        if not isinstance(text, str):
            raise TypeError("no text of a token")
        entries = list(likeliest.items()) if isinstance(likeliest, dict) else []
        numbers = _column(ids, len(entries))
        alternatives = [
            Token(other, _number(likely), _id(number))
            for (other, likely), number in zip(entries, numbers, strict=True)
        ]
        yield Token(text, _number(logprob), _id(id_), tuple(alternatives[:MAX_LIKELIEST]))


def _column(value: object, count: int) -> Sequence[object]:
    """Return a column, or one of `None` if it does not have that length."""
    return value if isinstance(value, list) and len(value) == count else [None] * count


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _id(value: object) -> int | None:
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_ID
    return value if valid and isinstance(value, int) else None
