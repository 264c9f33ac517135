"""Provider of agents. It stores nothing, since a turn carries its whole history, and executes no tool.

Turns of agents as values: the history becomes a chat with tools, and its answer becomes the turn's next step.

Llama Stack 0.0.1, `POST /agents/execute`. Where the specification is silent: the model is any name, a tool's parameter may have a
`name` (else it is `arg1`, `arg2` …), and a request for tools ends the turn, since the caller executes them.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import orjson
from aiohttp import web

from node.faces.llama_stack.request_mapping import body_of
from node.provide.asker import Asker
from node.provide.face import Fault, as_json, object_of, passed
from node.provide.files import new_id
from node.provide.plan import LLAMA_STACK, ProviderPlan
from registry.records import ModelType
from router.errors import BadRequest

Fields = Mapping[str, Any]

MAX_STEPS, MAX_TOOLS = 1_000, 128

_REASONS = {"length": "max-length", "content_filter": "safety"}
_TYPES = {
    "string": "string",
    "int": "integer",
    "float": "number",
    "list": "array",
    "bool": "boolean",
}


def chat_of(fields: Fields) -> bytes:
    """Return the chat request for a turn; raise `BadRequest`, which names the field."""
    agent, step = fields.get("agent"), fields.get("userStep")
    if not isinstance(agent, dict) or not isinstance(agent.get("model"), str):
        raise BadRequest("`agent` needs a `model`", param="agent")
    if not isinstance(step, dict):
        raise BadRequest("`userStep` is needed", param="userStep")
    history = fields.get("turnHistory") or []
    if not isinstance(history, list) or len(history) > MAX_STEPS:
        raise BadRequest(f"`turnHistory` has at most {MAX_STEPS:,} steps", param="turnHistory")
    messages = [*_instructions(agent), *_messages([*history, step])]
    body = body_of({"model": agent["model"], "messages": messages}, streams=False)
    tools = agent.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise BadRequest(f"an agent has at most {MAX_TOOLS} tools", param="agent.tools")
    if tools:
        body["tools"] = [_tool(tool, f"agent.tools[{index}]") for index, tool in enumerate(tools)]
    return orjson.dumps(body)


def turn_of(fields: Fields, ids: tuple[str, str], began: str, ended: str, answer: Fields) -> Fields:
    """Return the turn made from a chat's answer; `ids` are those of the turn and of its new step."""
    match answer:
        case {"choices": [{"message": dict(message), **rest}, *_]} if isinstance(
            calls := message.get("tool_calls") or [], list
        ):
            reason = _REASONS.get(str(rest.get("finish_reason")), "stop")
            text = message.get("content")
            messages = [*_said(ids[1], text if isinstance(text, str) else "", calls, reason)]
        case _:
            return failed(fields, ids, began, ended, "the model's answer is not a chat")
    step = {
        "id": ids[1],
        "role": "assistant",
        "stepType": "tool_request" if calls else "assistant_response",
        "messages": messages,
        "timestamp": ended,
    }
    usage = answer.get("usage")
    more = {"metadata": {"usage": usage}} if isinstance(usage, dict) else {}
    return _turn(fields, ids, began, ended, status="completed", steps=[step]) | more


def failed(
    fields: Fields, ids: tuple[str, str], began: str, ended: str, reason: str
) -> dict[str, Any]:
    """Return the turn of a chat that failed."""
    turn = _turn(fields, ids, began, ended, status="failed", steps=[])
    return turn | {"metadata": {"error": reason}}


def _turn(
    fields: Fields,
    ids: tuple[str, str],
    began: str,
    ended: str,
    *,
    status: str,
    steps: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "id": ids[0],
        "steps": [{"id": f"{ids[1]}_asked", "timestamp": began, **fields["userStep"]}, *steps],
        "startTime": began,
        "endTime": ended,
        "status": status,
    }


def _instructions(agent: Fields) -> Iterator[dict[str, object]]:
    name, about = agent.get("name"), agent.get("description")
    sentences = [f"You are {name}."] if isinstance(name, str) and name else []
    sentences += [about] if isinstance(about, str) and about else []
    if sentences:
        yield {"role": "system", "text": " ".join(sentences)}


def _messages(steps: Sequence[object]) -> Iterator[object]:
    for index, step in enumerate(steps):
        match step:
            case {"messages": list(messages), **rest}:
                pass
            case _:
                raise BadRequest("a step has `messages`", param=f"turnHistory[{index}]")
        # An answer to a request for tools has the role `tool`, whatever role the caller gives.
        usual = "tool" if rest.get("stepType") == "tool_response" else rest.get("role", "user")
        for message in messages:
            if not isinstance(message, dict) or message.get("tool_call"):
                yield message
            elif usual == "tool":
                yield {**message, "role": "tool"}
            else:
                yield {"role": usual, **message}


def _tool(tool: object, param: str) -> dict[str, object]:
    match tool:
        case {"name": str(name), **rest}:
            pass
        case _:
            raise BadRequest("a tool has a name", param=param)
    if rest.get("tool_type", "zeroshot") != "zeroshot":
        raise BadRequest(
            "this service runs no tools: only zeroshot tools are supported",
            param=f"{param}.tool_type",
        )
    listed = rest.get("parameters") or []
    if not isinstance(listed, list):
        raise BadRequest("the parameters of a tool are a list", param=f"{param}.parameters")
    properties = [*map(_parameter, listed, range(1, len(listed) + 1))]
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name, _ in properties],
    }
    function: dict[str, object] = {"name": name, "parameters": schema}
    if isinstance(rest.get("description"), str):
        function["description"] = rest["description"]
    return {"type": "function", "function": function}


def _parameter(parameter: object, number: int) -> tuple[str, dict[str, object]]:
    fields = parameter if isinstance(parameter, dict) else {}
    name = fields.get("name")
    schema: dict[str, object] = {"type": _TYPES.get(str(fields.get("type")), "string")}
    if schema["type"] == "array":
        schema["items"] = {"type": _TYPES.get(str(fields.get("itemType")), "string")}
    if isinstance(fields.get("description"), str):
        schema["description"] = fields["description"]
    return (name if isinstance(name, str) and name else f"arg{number}"), schema


def _said(id_: str, text: str, calls: Sequence[object], reason: str) -> Iterator[dict[str, object]]:
    end = {"eot": reason != "max-length", "is_complete": True, "finish_reason": reason}
    if text or not calls:
        yield {"id": id_, "text": text, **end}
    for index, call in enumerate(calls):
        match call:
            case {"function": {"name": str(name), "arguments": str(written)}}:
                tool_call = {"name": name, "arguments": [_arguments(written)]}
                yield {"id": f"{id_}_{index}", "tool_call": tool_call, **end}


def _arguments(written: str) -> object:
    try:
        arguments = orjson.loads(written or "{}")
    except orjson.JSONDecodeError:
        return {"unparsed": written}
    return arguments if isinstance(arguments, dict) else {"value": arguments}


_BUSY = frozenset({429, 503})


class AgentsProvider:
    """Turns of agents, over the models of a node."""

    types: Mapping[ModelType, str] = MappingProxyType({ModelType.AGENTS: LLAMA_STACK})
    cid = ""

    def __init__(self, plan: ProviderPlan, node: str) -> None:
        self._asker = Asker(node)
        self._semaphore = asyncio.Semaphore(plan.concurrency)

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        return [web.post("/agents/execute", self.execute)]

    async def run(self) -> None:
        """Keep the client of the node open until cancelled."""
        async with self._asker:
            await asyncio.Event().wait()

    def close(self) -> None:
        """Do nothing, as nothing is stored."""

    async def execute(self, http: web.Request) -> web.Response:
        """Let a model generate the next step of a turn."""
        fields = await object_of(http)
        try:
            chat = chat_of(fields)
        except BadRequest as bad:
            raise Fault(400, str(bad), param=bad.param) from bad
        ids, began = (new_id("turn_"), new_id("step_")), _now()
        async with self._semaphore:
            reply = await self._asker.post("/v1/chat/completions", chat)
        if reply.status in _BUSY or 400 <= reply.status <= 499:
            return passed(reply)
        try:
            answer = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            answer = None
        if reply.status != 200 or not isinstance(answer, dict):
            reason = f"no answer of the model: status {reply.status}"
            return as_json(failed(fields, ids, began, _now(), reason))
        try:
            return as_json(turn_of(fields, ids, began, _now(), answer))
        except orjson.JSONEncodeError:
            reason = "the model's answer is nested too deeply"
            return as_json(failed(fields, ids, began, _now(), reason))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


provider = AgentsProvider
