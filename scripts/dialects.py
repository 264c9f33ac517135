"""What becomes of a request that asks for one thing more? An example of each of OpenAI's parameters, put to a dialect."""

from collections.abc import Mapping

import orjson

from router.dialects.tgi_http import words
from router.requests import Kind, Request

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

BOTH: Mapping[str, object] = {
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1},
    "max_tokens": 77,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 7,
    "stop": "END",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "ann",
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "top_k": 5,
    "typical_p": 0.5,
    "guided_json": {"type": "object"},
    "response_format": _SCHEMA,
}
CHAT: Mapping[str, object] = BOTH | {
    "audio": {"voice": "x"},
    "functions": [{"name": "look"}],
    "logprobs": True,
    "max_completion_tokens": 77,
    "messages": [{"role": "user", "content": "ho"}],
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "x",
    "reasoning_effort": "low",
    "safety_identifier": "x",
    "service_tier": "flex",
    "store": True,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "tools": [_TOOL],
    "top_logprobs": 2,
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}
COMPLETION: Mapping[str, object] = BOTH | {
    "best_of": 2,
    "echo": True,
    "logprobs": 2,
    "prompt": "ho",
    "suffix": "the end",
}


def beside(name: str) -> Mapping[str, object]:
    """Return the fields without which a parameter means nothing."""
    return {"tools": [_TOOL]} if name == "tool_choice" else {}


def orders(kind: Kind, fields: Mapping[str, object]) -> words.Orders:
    """Say a short request, with some fields more, in TGI's words."""
    hello: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    body = orjson.dumps({"model": "m", **hello, **fields})
    stream = fields.get("stream") is True
    return words.read(Request("r", kind, "m", body, "application/json", stream=stream))[1]


def difference(plain: words.Orders, said: words.Orders) -> str:
    """Say in which fields of its body another request differs, or in its path or number."""
    if plain.path != said.path:
        return f"`/{said.path}`"
    if len(plain.bodies) != len(said.bodies):
        return f"{len(said.bodies)} requests"
    old, new = _flat(plain.bodies[0]), _flat(said.bodies[0])
    return ", ".join(f"`{name}`" for name, value in new.items() if old.get(name) != value)


def _flat(body: Mapping[str, object]) -> dict[str, object]:
    parameters = body.get("parameters")
    inner = parameters if isinstance(parameters, dict) else {}
    return {name: value for name, value in {**body, **inner}.items() if name != "parameters"}
