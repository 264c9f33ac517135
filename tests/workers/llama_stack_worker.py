"""Stub Llama Stack 0.0.1 server without a model. It refuses fields that are not in the specification."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from tests.workers import stub
from tests.workers.stub import Stub

# The specification lacks `stream`, but there is no other way to request a stream.
ASKED = {"messages", "model", "options", "n_completions", "stream"}
OPTIONS = {"logprobs", "max_tokens", "temperature", "top_p"}
MESSAGE = {"role", "text", "attachments", "metadata"}
ATTACHMENT = {"uri", "mime-type"}
BROKEN: dict[str, object] = {"error": {"message": "it broke"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(stub.Faults):
    """Faults of the stub, and forms of its answers.

    `plain` answers a request for a stream in one piece, and `seed_only` refuses the `stream` field. `candidates` is the
    number of candidates whatever was requested. `wrapped` puts the pieces of a stream into whole answers, and `unsaid`
    leaves out the usage.
    """

    plain: bool = False
    seed_only: bool = False
    wrapped: bool = False
    unsaid: bool = False
    candidates: int | None = None
    finish: str = "stop"
    tool: bytes = b""
    roles: frozenset[str] = frozenset({"system", "user", "assistant", "tool"})


class LlamaStackWorker(Stub[Faults]):
    """The server, while `running` is open."""

    def whole(self, http: web.Request, fields: Mapping[str, Any]) -> web.Response:
        """Return an answer with its candidates."""
        number = self.faults.candidates
        if number is None:
            number = fields.get("n_completions") or 1
        if self.faults.error_after == 0:
            return stub.as_json(orjson.dumps(BROKEN))
        message = {"text": "".join(self.words), **self._last()}
        answer: dict[str, object] = {
            "id": "i",
            "candidates": [{**message, "id": f"c{n}"} for n in range(number)],
            "model_called": fields["model"],
        }
        if self.faults.empty:
            answer["candidates"] = []
        return stub.as_json(orjson.dumps(answer | self._usage(number)))

    def events(self, http: web.Request, fields: Mapping[str, Any]) -> Sequence[bytes]:
        """Return the pieces of a message as events."""
        events: list[dict[str, object]] = [{"id": "m", "is_header_complete": True}]
        events += [{"id": "m", "text": word, "is_complete": False} for word in self.words]
        events.append({"text": "", **self._last()})
        if self.faults.wrapped:
            events = [{"id": "i", "candidates": [piece]} for piece in events]
        events[-1] |= self._usage(1)
        if self.faults.error_after is not None:
            events[self.faults.error_after] = BROKEN
        return list(map(stub.event, events))

    def streams(self, http: web.Request, fields: Mapping[str, Any]) -> bool:
        """Return whether the `stream` field or the Accept header requests a stream."""
        wanted = fields.get("stream") is True or "event-stream" in http.headers.get("accept", "")
        return wanted and not self.faults.plain

    def objection(self, http: web.Request, fields: Mapping[str, Any]) -> object:
        """Return the violation of the specification, `None` for none."""
        violation = self._violation(fields)
        return {"message": violation} if violation else None

    def _violation(self, fields: Mapping[str, Any]) -> str:
        if "messages" not in fields:
            return "no messages"
        known = ASKED - {"stream"} if self.faults.seed_only else ASKED
        unknown = (set(fields) - known) | (set(fields.get("options", ())) - OPTIONS)
        for message in fields["messages"]:
            unknown |= set(message) - MESSAGE
            for attachment in message.get("attachments", ()):
                unknown |= set(attachment) - ATTACHMENT
            if message["role"] not in self.faults.roles:
                return f"unknown role {message['role']}"
        return f"unknown field {', '.join(sorted(unknown))}" if unknown else ""

    def _last(self) -> dict[str, object]:
        finish = self.faults.finish
        ends: dict[str, object] = {"id": "m", "is_complete": True, "finish_reason": finish}
        ends["eot"] = finish != "max-length"
        return ends | ({"tool_call": orjson.loads(self.faults.tool)} if self.faults.tool else {})

    def _usage(self, number: int) -> dict[str, object]:
        written = len(self.words) * number
        usage = {"input_tokens": 5, "output_tokens": written, "total_tokens": 5 + written}
        return {} if self.faults.unsaid else {"usage": usage}


@asynccontextmanager
async def running() -> AsyncIterator[LlamaStackWorker]:
    """Run a server on a free port of loopback."""
    worker = LlamaStackWorker(Faults)
    async with worker.running("/inference"):
        yield worker
