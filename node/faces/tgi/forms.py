"""TGI's forms of `/v1` answers: an answer in OpenAI's form in, the same with all fields that TGI's specification requires out.

A caller that offered tools in TGI's form (`arguments`) gets calls in TGI's form: each event of a stream has one call, and a
message with calls has no text. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from router.openai.text_parser import written_answer
from router.requests import Kind
from router.select.fitness import USUAL_BYTES

Choice = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of one answer; `sent` are the fields of its request in OpenAI's form, `created` is Unix time."""

    kind: Kind
    sent: Mapping[str, object]
    id: str
    created: int
    spelt: bool
    """Whether the caller offers tools in TGI's form."""
    _called: dict[tuple[int, int], str] = field(default_factory=dict)

    def whole(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer in one piece."""
        choices = [self._whole(choice, at) for at, choice in enumerate(_choices(said))]
        answer = self._head(said, "chat.completion") | {"choices": choices}
        return answer | {"usage": self._usage(said.get("usage"), choices)}

    def chunks(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one event of a stream, as several where a choice contains more than one event has room for."""
        pieces = [self._pieces(choice, at) for at, choice in enumerate(_choices(said))]
        head = self._head(said, "chat.completion.chunk")
        rows = [*zip_longest(*pieces)] or [()]
        return [head | {"choices": [one for one in row if one is not None]} for row in rows]

    def _head(self, said: Mapping[str, Any], chat: str) -> dict[str, Any]:
        created = said.get("created")
        usual: dict[str, Any] = {
            "id": self.id,
            "object": chat if self.kind is Kind.CHAT else "text_completion",
            "model": str(self.sent.get("model")),
            "system_fingerprint": "",
        }
        lacking = {
            name: text for name, text in usual.items() if not isinstance(said.get(name), str)
        }
        told = isinstance(created, int) and not isinstance(created, bool) and created >= 0
        return {**said, **lacking, "created": created if told else self.created}

    def _whole(self, choice: Choice, at: int) -> Choice:
        reason = choice.get("finish_reason")
        ended = reason if isinstance(reason, str) and reason else "stop"
        found = choice | {"index": _index(choice, at), "finish_reason": ended}
        if self.kind is Kind.COMPLETION:
            return found | {"text": _text(choice.get("text")), "logprobs": choice.get("logprobs")}
        message = choice.get("message")
        given = message if isinstance(message, dict) else {}
        calls = _calls(given)
        said: dict[str, Any] = {**given, "role": given.get("role") or "assistant"}
        said["content"] = text = _text(given.get("content"))
        if calls:
            said["content"] = None if self.spelt else text or None
            said["tool_calls"] = [self._call(call, (found["index"], n)) for n, call in calls]
        return found | {"message": said, "logprobs": _likely(choice.get("logprobs"))}

    def _pieces(self, choice: Choice, at: int) -> list[Choice]:
        reason, index = choice.get("finish_reason"), _index(choice, at)
        if self.kind is Kind.COMPLETION:
            # In TGI's form, `""` marks a text that continues.
            ended: object = reason if isinstance(reason, str) else ""
            text, likely = _text(choice.get("text")), choice.get("logprobs")
            return [
                choice | {"index": index, "text": text, "finish_reason": ended, "logprobs": likely}
            ]
        ended = reason if isinstance(reason, str) and reason else None
        likely = _likely(choice.get("logprobs"))
        deltas = self._deltas(choice.get("delta"), index)
        pieces = [choice | {"index": index, "delta": delta} for delta in deltas]
        silent: Choice = {"finish_reason": None, "logprobs": None}
        pieces = [piece | silent for piece in pieces]
        pieces[0]["logprobs"] = likely
        pieces[-1]["finish_reason"] = ended
        return pieces

    def _deltas(self, delta: object, index: int) -> list[dict[str, Any]]:
        given: dict[str, Any] = delta if isinstance(delta, dict) else {}
        calls, text = _calls(given), _text(given.get("content"))
        role = given.get("role") or "assistant"
        said: dict[str, Any] = {**given, "role": role, "content": text}
        if not calls:
            return [said]
        if not self.spelt:
            return [said]
        del said["tool_calls"]
        told = [
            {"role": role, "tool_calls": {"index": n, **self._call(call, (index, n))}}
            for n, call in calls
        ]
        return [said, *told] if text else told

    def _call(self, call: Mapping[str, Any], place: tuple[int, int]) -> dict[str, Any]:
        """Return a call, or a piece of one, with all required fields; the worker sends the id with the first piece only."""
        function = call.get("function")
        given: dict[str, Any] = function if isinstance(function, dict) else {}
        id_ = call.get("id")
        if isinstance(id_, str) and id_:
            self._called[place] = id_
        arguments = given.get("arguments")
        text = arguments if isinstance(arguments, str) else ""
        if isinstance(arguments, dict):
            text = written_answer(arguments).decode()
        return {
            **call,
            "id": self._called.get(place, ""),
            "type": "function",
            "function": {**given, "arguments": text},
        }

    def _usage(self, given: Any, choices: Sequence[Choice]) -> dict[str, Any]:
        match given:
            case {"prompt_tokens": int(read), "completion_tokens": int(written)} as told:
                total = told.get("total_tokens")
                return {**told, "total_tokens": total if isinstance(total, int) else read + written}
        asked = self.sent.get("messages" if self.kind is Kind.CHAT else "prompt")
        texts = [choice.get("message") or choice.get("text") for choice in choices]
        read, written = (-(-len(written_answer(part)) // USUAL_BYTES) for part in (asked, texts))
        spent = {"prompt_tokens": read, "completion_tokens": written}
        return {**spent, "total_tokens": read + written, "estimated": True}


def _choices(said: Mapping[str, Any]) -> list[Choice]:
    choices = said.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict)]


def _calls(message: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return calls of tools, each with its index."""
    given = message.get("tool_calls")
    # TGI's own streams have one call in each event.
    calls = [given] if isinstance(given, dict) else given if isinstance(given, list) else []
    return [(_index(call, at), call) for at, call in enumerate(calls) if isinstance(call, dict)]


def _likely(given: object) -> object:
    """Return the log probabilities of a chat's tokens, with the empty lists that workers omit."""
    if not isinstance(given, dict):
        return None
    content = given.get("content")
    tokens = content if isinstance(content, list) else []
    return given | {
        "content": [
            {**token, "top_logprobs": token.get("top_logprobs") or []}
            for token in tokens
            if isinstance(token, dict)
        ]
    }


def _index(said: Mapping[str, Any], otherwise: int) -> int:
    given = said.get("index")
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    return otherwise


def _text(given: object) -> str:
    """Return a text; some workers send it in parts."""
    if isinstance(given, list):
        return "".join(_text(part.get("text")) for part in given if isinstance(part, dict))
    return given if isinstance(given, str) else ""
