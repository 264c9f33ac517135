"""Encoder of answers in TGI's form: a text with its details, or a stream of pieces whose last event has them.

A piece of a stream is shown as a token, unless its worker reports the tokens. Unknown values are not invented: `id` is 0,
`logprob` is null, `prefill` is an empty list, and so is `tokens` where the tokens have no ids.

Each error of this node becomes one of TGI's types, with its status and body. The positions of tokens are derived from the
worker's tokens if these make up the text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import orjson

from node.faces.encoder import TextEncoder
from node.faces.errors import TABLE, Refusal, UnknownPath, WrongMethod
from node.faces.tgi.request_mapping import TgiRequest
from router.errors import WorkerFailed, WorkerUnable
from router.openai import text_parser
from router.openai.logprobs import Token
from router.openai.text_parser import TextEvent, TextFailure
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind
from router.select.fitness import USUAL_BYTES


class ErrorForm(NamedTuple):
    """The form of one type of errors: HTTP status, `error_type`, and the beginning of its message."""

    status: int
    type: str
    opening: str


VALIDATION = ErrorForm(422, "validation", "Input validation error")
GENERATION = ErrorForm(424, "generation", "Request failed during generation")
OVERLOADED = ErrorForm(429, "overloaded", "Model is overloaded")
INCOMPLETE = ErrorForm(500, "incomplete_generation", "Incomplete generation")
NO_TOKENIZER = ErrorForm(404, "no_tokenizer", "No fast tokenizer available")
UNHEALTHY = ErrorForm(503, "healthcheck", "unhealthy")

_BUSY = frozenset({429, 503})
_DENIED = frozenset({401, 403})
_OF_HTTP = frozenset({TABLE[UnknownPath].reason, TABLE[WrongMethod].reason})
_OF_TYPE = {"invalid_request_error": VALIDATION, "rate_limit_error": OVERLOADED}


def refuse(refused: Refusal) -> Refusal:
    """Return an error before the first byte in TGI's form."""
    code = refused.body["error"]["code"]
    if code == INCOMPLETE.type:
        return said(refused, INCOMPLETE)
    if code in _OF_HTTP:
        return said(refused, VALIDATION._replace(status=refused.status))
    return said(refused, _of_status(refused.status))


def said(refused: Refusal, form: ErrorForm) -> Refusal:
    """Return an error in one of TGI's forms; its headers stay."""
    return Refusal(form.status, _body(form, refused.body["error"]["message"]), refused.headers)


def event(failure: TextFailure) -> bytes:
    """Return the last event of a stream, with the reason why it broke off."""
    form = _OF_TYPE.get(failure.type, GENERATION)
    if failure.code in ("answer_broken", INCOMPLETE.type):
        form = INCOMPLETE
    return b"data:" + orjson.dumps(_body(form, failure.message)) + b"\n\n"


def _of_status(status: int) -> ErrorForm:
    if status in _BUSY:
        return OVERLOADED
    if status in _DENIED:
        return ErrorForm(status, "authentication", "Not allowed")
    if status < 500:
        return VALIDATION
    return INCOMPLETE if status == 500 else GENERATION


def _body(form: ErrorForm, message: str) -> dict[str, str]:
    # The message of a TGI server has the opening already.
    text = message if message.startswith(form.opening) else f"{form.opening}: {message}"
    return {"error": text, "error_type": form.type}


PIECES: Mapping[str, object] = {"with_pieces": True, "return_token_strs": True}
"""Fields that request the text of each token from llama.cpp and vLLM; other workers refuse them."""

_MOST_ID = 2**32 - 1
_SHOWN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
_LETTERS: Mapping[str, bytes] = {
    **{chr(byte): bytes([byte]) for byte in _SHOWN},
    **{chr(0x100 + at): bytes([byte]) for at, byte in enumerate(_HIDDEN)},
}


def fields_of(fields: Mapping[str, object], inputs: str) -> dict[str, object]:
    """Return the fields of a request for the tokens of a text; as in TGI, special tokens are included by default."""
    return {
        "content": inputs,
        "add_special_tokens": fields.get("add_special_tokens") is not False,
    }


def tokens(body: bytes, inputs: str) -> list[dict[str, object]]:
    """Return TGI's tokens; raise `WorkerUnable` where their positions are unknown, `WorkerFailed` for an invalid answer."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the answer is not valid JSON") from error
    listed = payload.get("tokens") if isinstance(payload, dict) else None
    if not isinstance(listed, list):
        raise WorkerFailed("the answer lists no tokens")
    ids = [_id(token) for token in listed]
    for pieces in _spellings(listed, payload.get("token_strs")):
        if len(pieces) == len(ids) and (all_offsets := _places(pieces, inputs)):
            return [{"id": id_, **offsets} for id_, offsets in zip(ids, all_offsets, strict=True)]
    raise WorkerUnable("the worker does not report the positions of its tokens", param="inputs")


def _spellings(listed: Sequence[object], strings: object) -> list[list[bytes]]:
    """Return the possible readings of the pieces: as they are, or in either encoding of tokenizers for invisible bytes."""
    if not isinstance(strings, list) or len(strings) != len(listed):
        return [[piece for token in listed if (piece := _piece(token)) is not None]]
    texts = [text for text in strings if isinstance(text, str)]
    spelt: tuple[Callable[[str], bytes], ...] = (str.encode, _sentencepiece, _byte_level)
    return [list(map(spelling, texts)) for spelling in spelt]


def _sentencepiece(text: str) -> bytes:
    return text.replace("\u2581", " ").encode()


def _byte_level(text: str) -> bytes:
    """Decode GPT-2's alphabet, in which each invisible byte is a letter from U+0100 on."""
    return b"".join(_LETTERS.get(letter) or letter.encode() for letter in text)


def _id(token: object) -> int:
    match token:
        case {"id": int(id_)} | int(id_) if not isinstance(id_, bool) and 0 <= id_ <= _MOST_ID:
            return id_
    raise WorkerFailed("a token of the answer has no id")


def _piece(token: object) -> bytes | None:
    match token:
        case {"piece": str(text)} | {"text": str(text)}:
            return text.encode()
        # Incomplete characters are sent as bytes.
        case {"piece": [*numbers]} if all(isinstance(n, int) and 0 <= n < 256 for n in numbers):
            return bytes(numbers)
    return None


def _places(pieces: list[bytes], inputs: str) -> list[dict[str, object]]:
    """Return the positions of the pieces in a text, in characters; an empty list where they do not make it up."""
    encoded, end = inputs.encode(errors="replace"), 0
    offsets: list[dict[str, object]] = []
    for piece in _without_space_before(pieces, encoded):
        framing = not encoded.startswith(piece, end)
        if framing and end not in (0, len(encoded)):
            return []
        start, end = end, end if framing else end + len(piece)
        first, last = _characters(encoded[:start]), _characters(encoded[:end])
        # A character that several tokens share belongs to the first of them.
        text = piece.decode(errors="replace") if framing else inputs[first:last]
        offsets.append({"text": text, "start": first, "stop": last})
    return offsets if end == len(encoded) else []


def _without_space_before(pieces: list[bytes], encoded: bytes) -> list[bytes]:
    """Return the pieces without the space that some tokenizers put before a text."""
    for index, piece in enumerate(pieces):
        if piece.startswith(b" ") and len(piece) > 1 and encoded.startswith(piece[1:]):
            return [*pieces[:index], piece[1:], *pieces[index + 1 :]]
        if encoded.startswith(piece):
            break
    return pieces


def _characters(text: bytes) -> int:
    """Return the number of characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in text)


UNTOLD_ID = 0
"""The `id` of a token whose id the worker did not report."""


class Text(TextEncoder):
    """Encoder of one text. If `listed`, an answer in one piece is a list of one, as at `POST /`."""

    def __init__(
        self, request: TgiRequest, *, streams: bool, listed: bool, max_event_bytes: int
    ) -> None:
        super().__init__(Kind.COMPLETION, streams=streams, max_event_bytes=max_event_bytes)
        self._request = request
        self._listed = listed
        self._pieces: list[str] = []
        self._reason: Reason | None = None
        self._usage: Usage | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The length of the input, and the usage if the worker reported it."""
        headers = {"x-compute-characters": str(len(self._request.inputs))}
        if self._usage is not None and not self._usage.estimated:
            headers["x-prompt-tokens"] = str(self._usage.prompt)
            headers["x-generated-tokens"] = str(self._usage.completion)
        return headers

    def answer(self, events: Sequence[TextEvent]) -> object:
        """Return a whole answer."""
        text = text_parser.text_of(events)
        self._reason, self._usage = text_parser.reason_of(events), text_parser.usage_of(events)
        answer: dict[str, object] = {"generated_text": self._full(text)}
        if self._request.details:
            estimate = -(-len(text.encode()) // USUAL_BYTES)
            answer["details"] = {
                **self._details(estimate), "prefill": [], **self._tokens(events)
            }  # fmt: skip
        return [answer] if self._listed else answer

    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return pieces of a stream, each as a token."""
        written: list[bytes] = []
        for event in events:
            match event:
                case Delta(_, 0):
                    written += map(self._piece, _pieces(event))
                case End(reason, 0):
                    self._reason = reason
                case Usage():
                    self._usage = event
        return b"".join(written)

    def closing(self) -> bytes:
        """Return the last event: a special token without text, with the whole text and its details."""
        ends = {
            "generated_text": self._full("".join(self._pieces)),
            "details": self._details(len(self._pieces)),
        }
        self._pieces.append("")
        return self._event(_said(Token(""), special=True), **ends)

    def failure(self, failure: TextFailure) -> bytes:
        """Return the event for a stream that broke off."""
        return event(failure)

    def _tokens(self, events: Sequence[TextEvent]) -> dict[str, object]:
        """Return the tokens of a whole text: all of them, or none."""
        tokens = [t for e in events if isinstance(e, Delta) and e.choice == 0 for t in e.tokens]
        if any(token.id is None for token in tokens):
            tokens = []
        details: dict[str, object] = {"tokens": list(map(_said, tokens))}
        if self._request.likeliest:
            details["top_tokens"] = list(map(self._likeliest, tokens))
        return details

    def _piece(self, token: Token) -> bytes:
        self._pieces.append(token.text)
        beside = {"top_tokens": self._likeliest(token)} if self._request.likeliest else {}
        return self._event(_said(token), **beside)

    def _likeliest(self, token: Token) -> list[dict[str, object]]:
        return list(map(_said, token.likeliest[: self._request.likeliest]))

    def _event(self, token: Mapping[str, object], **ends: object) -> bytes:
        event = {
            "index": len(self._pieces),
            "token": token,
            "generated_text": None,
            "details": None,
        }
        return b"data:" + orjson.dumps(event | ends) + b"\n\n"

    def _details(self, estimate: int) -> dict[str, object]:
        written = estimate if self._usage is None else self._usage.completion
        reason = "length" if self._reason == "length" else "eos_token"
        # OpenAI's form has one finish reason for a stop string and for the model's own end.
        if reason != "length" and self._request.stops:
            reason = "stop_sequence"
        return {
            "finish_reason": reason,
            "generated_tokens": written,
            "seed": self._request.seed,
        }

    def _full(self, text: str) -> str:
        return self._request.inputs + text if self._request.full_text else text


def _pieces(delta: Delta) -> Sequence[Token]:
    """Return the tokens of a piece of text, where they make it up; else the whole piece as one token."""
    if delta.tokens and "".join(token.text for token in delta.tokens) == delta.text:
        return delta.tokens
    return (Token(delta.text),)


def _said(token: Token, *, special: bool = False) -> dict[str, object]:
    number = UNTOLD_ID if token.id is None else token.id
    return {"id": number, "text": token.text, "logprob": token.logprob, "special": special}
