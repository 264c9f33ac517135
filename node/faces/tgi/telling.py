"""How does an answer sound in TGI's words? A text with its details, or a stream of pieces whose last event has them.

A piece of a stream is shown as a token. What OpenAI's form does not tell is not made up: its `id` is 0, `logprob` null, and
`tokens` and `prefill` are empty lists.
"""

from collections.abc import Mapping, Sequence

import orjson

from node.faces.tgi import refusing
from node.faces.tgi.asked import Asked
from node.faces.voice import TextVoice
from router import hearing
from router.fitness import USUAL_BYTES
from router.hearing import Failure, Heard
from router.rendering import Delta, End, Reason
from router.requests import Kind
from router.usage import Usage

UNTOLD_ID = 0
"""The `id` of every token in a stream: which one it is, nobody told."""


class Text(TextVoice):
    """Says one text. `listed` says that an answer in one piece is a list of one, as `POST /` has it."""

    def __init__(self, asked: Asked, *, streams: bool, listed: bool, max_event_bytes: int) -> None:
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
        text = hearing.text_of(heard)
        self._reason, self._usage = hearing.reason_of(heard), hearing.usage_of(heard)
        answer: dict[str, object] = {"generated_text": self._full(text)}
        if self._asked.details:
            estimate = -(-len(text.encode()) // USUAL_BYTES)
            answer["details"] = {**self._details(estimate), "prefill": [], "tokens": []}
        return [answer] if self._listed else answer

    def events(self, heard: Sequence[Heard]) -> bytes:
        """Say pieces of a stream, each as a token."""
        said: list[bytes] = []
        for event in heard:
            match event:
                case Delta(text, 0):
                    self._pieces.append(text)
                    said.append(self._event(text))
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
        return self._event("", special=True, **ends)

    def failure(self, failure: Failure) -> bytes:
        """Say that the stream broke off."""
        return refusing.event(failure)

    def _event(self, text: str, *, special: bool = False, **ends: object) -> bytes:
        token = {"id": UNTOLD_ID, "text": text, "logprob": None, "special": special}
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
