"""Parser for a LocalAI backend's replies: text, usage and finish reason."""

import codecs
from collections.abc import Mapping
from typing import Any

import orjson

from router.canonical.text import TextRequest
from router.errors import WorkerFailed
from router.openai.text_writer import Reason
from router.openai.usage import Usage
from router.select.fitness import estimated_tokens
from router.translate.text import OutputPiece, estimate_prompt_tokens

COUNTABLE = 1_000_000
"""Characters of the longest text whose tokens a backend is asked to count."""


class ReplyTexts:
    """The replies for one choice, in their order.

    A reply may be empty, or end in the middle of a character. The finish reason is never reported: a text with as many tokens as
    its limit counts as cut off. Its tokens are the backend's count, or else `counted_later`, or else an estimate.
    """

    def __init__(self, request: TextRequest, choice: int, body: Mapping[str, object]) -> None:
        self._request = request
        self._choice = choice
        self._limit = body.get("Tokens")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens = ReplyTokens()
        self._prompt = 0
        self._guess: int | None = None
        self._texts: list[str] = []
        self._kept = self._bytes = 0
        self.counted_later: Usage | None = None

    @property
    def has_counts(self) -> bool:
        """Whether any reply reported tokens."""
        return self._tokens.count > 0

    @property
    def text(self) -> str:
        """The text, stop strings included, kept only while no reply reports tokens, and only to little beyond `COUNTABLE`."""
        return "".join(self._texts)

    def read(self, _: TextRequest, reply: Any | None) -> OutputPiece:
        """Read the next reply, `None` for the end of them."""
        if reply is None:
            rest = self._decoder.decode(b"", final=True)
            return OutputPiece(rest, self._reason(), self.counted_later, over=True)
        self._tokens.record(reply.tokens)
        self._prompt = max(self._prompt, reply.prompt_tokens)
        text = self._decoder.decode(reply.message)
        self._bytes += len(reply.message)
        if text and not self.has_counts and self._kept <= COUNTABLE:
            self._texts.append(text)
            self._kept += len(text)
        return OutputPiece(text, usage=self._usage())

    def _usage(self) -> Usage | None:
        """Return the usage so far, `None` from a backend that reports no counts."""
        if not self.has_counts:
            return None
        if self._prompt:
            return Usage(self._prompt, self._tokens.count)
        # An estimate reads the whole request, which costs too much to be done for each reply.
        self._guess = self._guess or estimate_prompt_tokens(self._request, self._choice)
        return Usage(self._guess, self._tokens.count, estimated=True)

    def _reason(self) -> Reason:
        if self._tokens.count:
            return reason(self._limit, self._tokens.count)
        later = self.counted_later
        return reason(self._limit, later.completion if later else estimated_tokens(self._bytes))


def reason(limit: object, written: int) -> Reason:
    """Return the finish reason of a text of `written` tokens; a `limit` of 0 is none."""
    return "length" if isinstance(limit, int) and 0 < limit <= written else "stop"


def parse_reply(
    request: TextRequest, choice: int, body: Mapping[str, object], reply: Any
) -> OutputPiece:
    """Read the one reply for a choice; raise `WorkerFailed` if it must be JSON and is not."""
    replies = ReplyTexts(request, choice, body)
    piece, end = replies.read(request, reply), replies.read(request, None)
    text = piece.text + end.text
    if request.schema is not None and end.reason != "length":
        _check_json(text)
    return OutputPiece(text, end.reason, piece.usage)


def _check_json(text: str) -> None:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # Backends without grammars ignore one silently.
        raise WorkerFailed("the worker's answer is not the requested JSON") from error


class ReplyTokens:
    """Count of written tokens: some backends report the sum so far, others the tokens of each reply."""

    def __init__(self) -> None:
        self._reported = 0
        self._last = 0
        self._sum = 0
        self._rising = True

    def record(self, tokens: int) -> None:
        """Take in the count of one reply."""
        if tokens <= 0:
            return
        self._rising = self._rising and tokens >= self._last
        self._reported, self._last, self._sum = self._reported + 1, tokens, self._sum + tokens

    @property
    def count(self) -> int:
        """The tokens written so far, 0 if none are reported."""
        # Running sums never fall, and are never less than the number of reports.
        sums = self._rising and self._last >= self._reported
        return self._last if sums else self._sum
