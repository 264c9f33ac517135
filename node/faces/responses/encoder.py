"""Encoder of answers for the Responses API: one object, or a stream of numbered events that ends with that object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from node.faces.encoder import TextVoice
from node.faces.responses.output import Output, Said
from router.openai.text_parser import Heard, TextFailure
from router.openai.text_writer import Reason
from router.openai.usage import Usage
from router.requests import Kind

_INCOMPLETE: Mapping[Reason | None, str] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class Head:
    """What every picture of one response has in common. `created` is Unix time, `repeats` are settings of its request.

    `called` says what the functions are called that a chat calls otherwise.
    """

    id: str
    created: int
    model: str
    repeats: Mapping[str, object]
    called: Mapping[str, Mapping[str, str]]


class ResponsesVoice(TextVoice):
    """Says one response."""

    def __init__(self, head: Head, *, streams: bool, max_event_bytes: int) -> None:
        super().__init__(Kind.CHAT, streams=streams, max_event_bytes=max_event_bytes)
        self._head = head
        self._output = Output(head.id, head.called)
        self._sequence = 0

    def answer(self, heard: Sequence[Heard]) -> Said:
        """Return the response."""
        for event in heard:
            for _ in self._output.hear(event):
                pass
        for _ in self._output.finish():
            pass
        return self._response(self._status)

    def opening(self) -> bytes:
        """Say that the response begins."""
        response = self._response("in_progress")
        begun = ("response.created", "response.in_progress")
        return self._written({"type": kind, "response": response} for kind in begun)

    def events(self, heard: Sequence[Heard]) -> bytes:
        """Say a piece of the output."""
        return b"".join(self._written(self._output.hear(event)) for event in heard)

    def closing(self) -> bytes:
        """Say the whole response."""
        finished = self._written(self._output.finish())
        status = self._status
        last: Said = {"type": f"response.{status}", "response": self._response(status)}
        return finished + self._written([last])

    def failure(self, failure: TextFailure) -> bytes:
        """Say that the response failed, once as its last state, and once as the error that OpenAI's clients raise."""
        # Who waited for long heard comments before it.
        opening = b"" if self._sequence else self.opening()
        code = failure.code or "server_error"
        error: Said = {"code": code, "message": failure.message}
        failed: Said = {"type": "response.failed", "response": self._response("failed", error)}
        told = error | {"type": failure.type or "server_error", "param": None}
        return opening + self._written(
            [failed, {**error, "param": None, "type": "error", "error": told}]
        )

    @property
    def _status(self) -> str:
        return "incomplete" if self._output.reason in _INCOMPLETE else "completed"

    def _written(self, events: Iterable[Said]) -> bytes:
        written = []
        for event in events:
            event["sequence_number"] = self._sequence
            self._sequence += 1
            written.append(
                b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))
            )
        return b"".join(written)

    def _response(self, status: str, error: Said | None = None) -> Said:
        output, usage = self._output, self._output.usage
        incomplete = status == "incomplete"
        return {
            "id": f"resp_{self._head.id}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": _INCOMPLETE[output.reason]} if incomplete else None,
            "model": self._head.model,
            "output": output.said(),
            "usage": _usage(usage) if usage else None,
            **self._head.repeats,
        }


def _usage(usage: Usage) -> Said:
    said: Said = {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
    return said | ({"estimated": True} if usage.estimated else {})
