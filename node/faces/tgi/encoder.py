"""Encoder of answers in TGI's form: a text with its details, or a stream of pieces whose last event has them.

A piece of a stream is shown as a token, unless its worker tells the tokens. What nobody tells is not made up: the `id` is 0,
`logprob` null, and `prefill` is an empty list, as `tokens` is where they have no ids.
"""

from collections.abc import Mapping, Sequence

import orjson

from node.faces.encoder import TextVoice
from node.faces.tgi import errors
from node.faces.tgi.request_mapping import TgiRequest
from router.openai import text_parser
from router.openai.logprobs import Token
from router.openai.text_parser import Heard, TextFailure
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind
from router.select.fitness import USUAL_BYTES

UNTOLD_ID = 0
"""The `id` of every token in a stream: which one it is, nobody told."""


class Text(TextVoice):
    """Says one text. `listed` says that an answer in one piece is a list of one, as `POST /` has it."""

    def __init__(
        self, asked: TgiRequest, *, streams: bool, listed: bool, max_event_bytes: int
    ) -> None:
        super().__init__(Kind.COMPLETION, streams=streams, max_event_bytes=max_event_bytes)
        self._asked = asked
        self._listed = listed
        self._pieces: list[str] = []
        self._reason: Reason | None = None
        self._usage: Usage | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What the answer took, where its worker told that."""
        said = {"x-compute-characters": str(len(self._asked.inputs))}
        if self._usage is not None and not self._usage.estimated:
            said["x-prompt-tokens"] = str(self._usage.prompt)
            said["x-generated-tokens"] = str(self._usage.completion)
        return said

    def answer(self, heard: Sequence[Heard]) -> object:
        """Say a whole answer."""
        text = text_parser.text_of(heard)
        self._reason, self._usage = text_parser.reason_of(heard), text_parser.usage_of(heard)
        answer: dict[str, object] = {"generated_text": self._full(text)}
        if self._asked.details:
            estimate = -(-len(text.encode()) // USUAL_BYTES)
            answer["details"] = {
                **self._details(estimate), "prefill": [], **self._tokens(heard)
            }  # fmt: skip
        return [answer] if self._listed else answer

    def events(self, heard: Sequence[Heard]) -> bytes:
        """Say pieces of a stream, each as a token."""
        said: list[bytes] = []
        for event in heard:
            match event:
                case Delta(_, 0):
                    said += map(self._piece, _pieces(event))
                case End(reason, 0):
                    self._reason = reason
                case Usage():
                    self._usage = event
        return b"".join(said)

    def closing(self) -> bytes:
        """Say the end: a special token without text, with all of the text and its details."""
        ends = {
            "generated_text": self._full("".join(self._pieces)),
            "details": self._details(len(self._pieces)),
        }
        self._pieces.append("")
        return self._event(_said(Token(""), special=True), **ends)

    def failure(self, failure: TextFailure) -> bytes:
        """Say that the stream broke off."""
        return errors.event(failure)

    def _tokens(self, heard: Sequence[Heard]) -> dict[str, object]:
        """Return the tokens of a whole text: all of them, or none."""
        tokens = [t for e in heard if isinstance(e, Delta) and e.choice == 0 for t in e.tokens]
        if any(token.id is None for token in tokens):
            tokens = []
        said: dict[str, object] = {"tokens": list(map(_said, tokens))}
        if self._asked.likeliest:
            said["top_tokens"] = list(map(self._likeliest, tokens))
        return said

    def _piece(self, token: Token) -> bytes:
        self._pieces.append(token.text)
        beside = {"top_tokens": self._likeliest(token)} if self._asked.likeliest else {}
        return self._event(_said(token), **beside)

    def _likeliest(self, token: Token) -> list[dict[str, object]]:
        return list(map(_said, token.likeliest[: self._asked.likeliest]))

    def _event(self, token: Mapping[str, object], **ends: object) -> bytes:
        said = {"index": len(self._pieces), "token": token, "generated_text": None, "details": None}
        return b"data:" + orjson.dumps(said | ends) + b"\n\n"

    def _details(self, estimate: int) -> dict[str, object]:
        written = estimate if self._usage is None else self._usage.completion
        reason = "length" if self._reason == "length" else "eos_token"
        # That a stop string was met, and that the model had no more to say, is one reason in OpenAI's form.
        if reason != "length" and self._asked.stops:
            reason = "stop_sequence"
        return {
            "finish_reason": reason,
            "generated_tokens": written,
            "seed": self._asked.seed,
        }

    def _full(self, text: str) -> str:
        return self._asked.inputs + text if self._asked.full_text else text


def _pieces(delta: Delta) -> Sequence[Token]:
    """Return the tokens of a piece of text, where they make it up; else the piece as one."""
    if delta.tokens and "".join(token.text for token in delta.tokens) == delta.text:
        return delta.tokens
    return (Token(delta.text),)


def _said(token: Token, *, special: bool = False) -> dict[str, object]:
    number = UNTOLD_ID if token.id is None else token.id
    return {"id": number, "text": token.text, "logprob": token.logprob, "special": special}
