"""Stub Text Generation Inference server without a model, written from its specification: real HTTP, faults on request.

It answers with `words`, each a token, and ends after a stop string, which it includes. `received` and `hung_up` record
what reached it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from tests.workers import stub
from tests.workers.openai_worker import Received
from tests.workers.stub import Stub

PARAMETERS = {
    "adapter_id", "best_of", "decoder_input_details", "details", "do_sample", "frequency_penalty", "grammar", "max_new_tokens",
    "repetition_penalty", "return_full_text", "seed", "stop", "temperature", "top_k", "top_n_tokens", "top_p", "truncate",
    "typical_p", "watermark",
}  # fmt: skip
CHAT = {
    "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "messages", "model", "n", "presence_penalty", "response_format",
    "seed", "stop", "stream", "temperature", "tool_choice", "tool_prompt", "tools", "top_logprobs", "top_p",
}  # fmt: skip


COMPLETION = {
    "frequency_penalty", "max_tokens", "model", "prompt", "repetition_penalty", "seed", "stop", "stream", "suffix", "temperature",
    "top_p",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(stub.Faults):
    """Faults of the stub, and forms of its answers."""

    refusal: bytes = b'{"error":"no","error_type":"validation"}'
    error_type: str = "generation"
    health: int = 200
    info: bytes = b'{"model_id":"org/m","max_best_of":2,"max_concurrent_requests":128}'
    metrics: bytes = b""
    input_length: int | None = None
    finish: str = "eos_token"
    tool: bytes = b""
    pad_bytes: int = 0


class TgiWorker(Stub[Faults]):
    """The server, while `running` is open."""

    async def health(self, http: web.Request) -> web.Response:
        """Report whether the model is alive."""
        self.probed.append(Received(http.path_qs, http.headers, b""))
        return web.Response(status=self.faults.health)

    async def info(self, http: web.Request) -> web.Response:
        """Return the server's description."""
        self.probed.append(Received(http.path_qs, http.headers, b""))
        return stub.as_json(self.faults.info)

    async def metrics(self, http: web.Request) -> web.Response:
        """Return metrics, if `faults` hold any."""
        self.probed.append(Received(http.path_qs, http.headers, b""))
        if not self.faults.metrics:
            return web.Response(status=404)
        return web.Response(body=self.faults.metrics, content_type="text/plain")

    def streams(self, http: web.Request, fields: Mapping[str, Any]) -> bool:
        """Return whether the path or the `stream` field requests a stream."""
        return http.path == "/generate_stream" or fields.get("stream") is True

    def objection(self, http: web.Request, fields: Mapping[str, Any]) -> object:
        """Return the violation of the specification, `None` for none."""
        violation = _objection(http.path, fields)
        payload = {"error": f"Input validation error: {violation}", "error_type": "validation"}
        return payload if violation else None

    def whole(self, http: web.Request, fields: Mapping[str, Any]) -> web.Response:
        """Return an answer of the path's form."""
        answer: object = self._text(fields)
        if http.path == "/v1/completions":
            answer = self._completion(fields)
        elif http.path.startswith("/v1"):
            answer = self._chat(fields)
        elif http.path == "/tokenize":
            answer = _tokens(str(fields["inputs"]))
        counts = {"x-prompt-tokens": "5", "x-generated-tokens": str(len(self.words))}
        return stub.as_json(b"" if self.faults.empty else orjson.dumps(answer), headers=counts)

    def _text(self, fields: Mapping[str, Any]) -> dict[str, object]:
        words, reason = self._said(fields)
        if self.faults.error_after == 0:
            return self._error()
        details = {
            "finish_reason": reason,
            "generated_tokens": len(words),
            "prefill": [],
            "tokens": [_token(number, word) for number, word in enumerate(words)],
        }
        if count := _number(fields.get("parameters"), "top_n_tokens"):
            details["top_tokens"] = [_likeliest(n, w, count) for n, w in enumerate(words)]
        return {"generated_text": "".join(words) + "x" * self.faults.pad_bytes, "details": details}

    def _chat(self, fields: Mapping[str, Any]) -> dict[str, object]:
        words, reason = self._said(fields)
        message: dict[str, object] = {"role": "assistant", "content": "".join(words)}
        if fields.get("tools") and self.faults.tool:
            call = {"id": 0, "type": "function", "function": orjson.loads(self.faults.tool)}
            message = {"role": "assistant", "tool_calls": [call]}
        usage = {
            "prompt_tokens": 5,
            "completion_tokens": len(words),
            "total_tokens": 5 + len(words),
        }
        likely = _logprobs(fields, list(enumerate(words)))
        choice = {"index": 0, "message": message, "logprobs": likely, "finish_reason": reason}
        head = {"id": "", "created": 1, "model": "own/name", "system_fingerprint": "2"}
        return {**head, "choices": [choice], "usage": usage}

    def _completion(self, fields: Mapping[str, Any]) -> dict[str, object]:
        words, reason = self._said(fields)
        choice = {"index": 0, "text": "".join(words), "logprobs": None, "finish_reason": reason}
        written = len(words)
        usage = {"prompt_tokens": 5, "completion_tokens": written, "total_tokens": 5 + written}
        head = {"id": "", "created": 1, "model": "own/name", "system_fingerprint": "2"}
        return {**head, "choices": [choice], "usage": usage}

    def events(self, http: web.Request, fields: Mapping[str, Any]) -> list[bytes]:
        """Return the events of a stream, in the path's form."""
        words, reason = self._said(fields)
        path = http.path
        chat = path.startswith("/v1")
        texts = [*words, "</s>"] if reason == "eos_token" else list(words)
        events: list[dict[str, object]] = []
        for index, text in enumerate(texts):
            last = index == len(texts) - 1
            special = text == "</s>"
            if path == "/v1/completions":
                ended = reason if last else ""
                choice = {"index": 0, "text": "" if special else text, "finish_reason": ended}
                head = {"id": "", "created": 1, "model": "own/name", "system_fingerprint": "2"}
                events.append({**head, "choices": [choice]})
                continue
            if chat:
                delta = {"role": "assistant"} | ({} if special else {"content": text})
                choice = {"index": 0, "delta": delta, "finish_reason": reason if last else None}
                if not special:
                    choice["logprobs"] = _logprobs(fields, [(index, text)])
                events.append({"id": "", "created": 1, "model": "own/name", "choices": [choice]})
                continue
            token = _token(index, text) | {"special": special}
            count = _number(fields.get("parameters"), "top_n_tokens")
            beside = {"top_tokens": _likeliest(index, text, count)} if count else {}
            details = {"finish_reason": reason, "generated_tokens": len(texts), "seed": None}
            if self.faults.input_length is not None:
                details["input_length"] = self.faults.input_length
            ends = {"generated_text": "".join(words), "details": details}
            open_ = {"generated_text": None, "details": None}
            events.append(
                {"index": index + 1, "token": token, **beside, **(ends if last else open_)}
            )
        if self.faults.error_after is not None:
            events[self.faults.error_after] = self._error()
        written = [b"data:" + orjson.dumps(event) + b"\n\n" for event in events]
        return [*written, b"data: [DONE]\n\n"] if chat else written

    def _error(self) -> dict[str, object]:
        return {"error": "Request failed", "error_type": self.faults.error_type}

    def _said(self, fields: Mapping[str, Any]) -> tuple[list[str], str]:
        parameters = fields.get("parameters", fields)
        assert isinstance(parameters, dict)
        words: list[str] = []
        for word in self.words:
            words.append(word)
            if any(stop in "".join(words) for stop in parameters.get("stop", ())):
                return words, "stop_sequence"
        return words, self.faults.finish


def _objection(path: str, fields: Mapping[str, Any]) -> str:
    """Return the violation of the specification, unknown fields included, which newer servers may refuse; or an empty text."""
    chat = path.startswith("/v1")
    parameters = fields if chat else fields.get("parameters", {})
    assert isinstance(parameters, dict)
    known = COMPLETION if path == "/v1/completions" else CHAT if chat else PARAMETERS
    unknown = set(parameters) - known
    if unknown or (not chat and set(fields) - {"inputs", "parameters"}):
        return f"unknown field {', '.join(sorted(unknown))}"
    if path == "/tokenize":
        return ""
    limit, top_p = (
        parameters.get("max_tokens" if chat else "max_new_tokens"),
        parameters.get("top_p"),
    )
    temperature = parameters.get("temperature")
    return next(
        reason
        for wrong, reason in (
            (limit is not None and limit < 1, "`max_new_tokens` must be strictly positive"),
            (top_p is not None and not 0 < top_p < 1, "`top_p` must be > 0.0 and < 1.0"),
            (
                not chat and temperature is not None and temperature <= 0,
                "`temperature` must be > 0",
            ),
            (len(parameters.get("stop", ())) > 4, "`stop` supports up to 4 stop sequences"),
            (chat and parameters.get("model") != "tgi", "adapter is not loaded"),
            (True, ""),
        )
        if wrong
    )


def _number(parameters: object, name: str) -> int:
    value = parameters.get(name) if isinstance(parameters, dict) else None
    return value if isinstance(value, int) else 0


def _token(number: int, text: str) -> dict[str, object]:
    return {"id": number, "text": text, "logprob": -0.5, "special": False}


def _likeliest(number: int, text: str, count: int) -> list[dict[str, object]]:
    others = [{"id": 900 + n, "text": f"other{n}", "logprob": -1.5} for n in range(count - 1)]
    return [_token(number, text), *({**other, "special": False} for other in others)]


def _logprobs(fields: Mapping[str, Any], words: list[tuple[int, str]]) -> object:
    """Return the log probabilities of a chat in TGI's form, which has no token numbers."""
    if fields.get("logprobs") is not True:
        return None
    count = _number(fields, "top_logprobs")
    content = []
    for number, text in words:
        beside = [
            {"token": token["text"], "logprob": token["logprob"]}
            for token in _likeliest(number, text, count)[:count]
        ]
        content.append({"token": text, "logprob": -0.5, "top_logprobs": beside})
    return {"content": content}


def _tokens(text: str) -> list[dict[str, object]]:
    """Tokenize a text into its characters."""
    return [
        {"id": ord(character), "text": character, "start": index, "stop": index + 1}
        for index, character in enumerate(text)
    ]


POSTS = "/generate", "/generate_stream", "/tokenize", "/v1/completions", "/v1/chat/completions"


@asynccontextmanager
async def running() -> AsyncIterator[TgiWorker]:
    """Run a server on a free port of loopback."""
    worker = TgiWorker(Faults)
    gets = {"/health": worker.health, "/info": worker.info, "/metrics": worker.metrics}
    async with worker.running(*POSTS, gets=gets):
        yield worker
