"""Encoder of answers for Anthropic's API: as a message of blocks, or as events that open, fill and close them.

Thoughts are told to who asked for them. A worker that does not tell its tokens has them estimated, and `usage` says so.
"""

from collections.abc import Mapping, Sequence

from node.faces.anthropic import errors
from node.faces.anthropic.blocks import Blocks, content_of, event, without
from node.faces.anthropic.request_mapping import MessagesRequest
from node.faces.anthropic.token_count import estimated
from node.faces.encoder import TextVoice
from router.openai.text_parser import CallPart, Heard, TextFailure, Thought
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind
from router.select.fitness import USUAL_BYTES

_REASONS: Mapping[Reason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class AnthropicEvents(TextVoice):
    """Says one answer."""

    def __init__(
        self, asked: MessagesRequest, request_id: str, own_id: str, *, max_event_bytes: int
    ) -> None:
        """`own_id` is the answer's: what a caller calls its request may come twice in one conversation."""
        super().__init__(Kind.CHAT, streams=asked.stream, max_event_bytes=max_event_bytes)
        self._asked = asked
        self._request_id = request_id
        self._id = own_id
        self._blocks = Blocks(own_id)
        self._end: End | None = None
        self._usage: Usage | None = None
        self._called = False
        self._bytes = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """Name the request where its SDK looks."""
        return {"request-id": self._request_id}

    def answer(self, heard: Sequence[Heard]) -> object:
        """Say an answer in one piece."""
        said = self._learnt(heard)
        content = without(content_of(said, self._id), self._asked.begun)
        return {**self._message(content), **self._ending(), "usage": self._spent()}

    def opening(self) -> bytes:
        """Begin the message."""
        # Nobody knows yet what was read; the last event says it.
        usage = {"input_tokens": estimated(self._asked.fields), "output_tokens": 0}
        ending = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **ending, "usage": usage}
        return event("message_start", message=message)

    def events(self, heard: Sequence[Heard]) -> bytes:
        """Say a piece of it."""
        return self._blocks.take(self._learnt(heard))

    def closing(self) -> bytes:
        """Close what is open, and say how it ended."""
        closed = self._blocks.close()
        ending = event("message_delta", delta=self._ending(), usage=self._spent())
        return closed + ending + event("message_stop")

    def failure(self, failure: TextFailure) -> bytes:
        """Say that it broke off."""
        return errors.broken(failure, self._request_id)

    def _learnt(self, heard: Sequence[Heard]) -> list[Delta | Thought | CallPart]:
        """Take in how it ends and what it took; return what it says besides to this caller."""
        said: list[Delta | Thought | CallPart] = []
        for part in heard:
            match part:
                case Usage():
                    self._usage = part
                case End(choice=0):
                    self._end = part
                case Delta(text, 0) | Thought(text, 0) | CallPart(arguments=text, choice=0):
                    self._bytes += len(text.encode())
                    self._called = self._called or isinstance(part, CallPart)
                    if self._asked.thinks or not isinstance(part, Thought):
                        said.append(part)
        return said

    def _message(self, content: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": content,
        }

    def _ending(self) -> dict[str, object]:
        end = self._end or End("stop")
        reason, stop = _REASONS[end.reason], end.stop
        if self._called and reason == "end_turn":
            # Some workers say that they just stopped, after they called a tool.
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if stop in self._asked.stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": reason, "stop_sequence": None}

    def _spent(self) -> dict[str, object]:
        usage = self._usage or Usage(
            estimated(self._asked.fields), -(-self._bytes // USUAL_BYTES), estimated=True
        )
        said: dict[str, object] = {
            "input_tokens": usage.prompt,
            "output_tokens": usage.completion,
        }
        return said | ({"estimated": True} if usage.estimated else {})
