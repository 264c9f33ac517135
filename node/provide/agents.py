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


def chat_of(asked: Fields) -> bytes:
    """Return the chat request for a turn; raise `BadRequest`, which names the field."""
    agent, step = asked.get("agent"), asked.get("userStep")
    if not isinstance(agent, dict) or not isinstance(agent.get("model"), str):
        raise BadRequest("`agent` needs a `model`", param="agent")
    if not isinstance(step, dict):
        raise BadRequest("`userStep` is needed", param="userStep")
    history = asked.get("turnHistory") or []
    if not isinstance(history, list) or len(history) > MAX_STEPS:
        raise BadRequest(f"`turnHistory` has at most {MAX_STEPS:,} steps", param="turnHistory")
    said = [*_instructions(agent), *_messages([*history, step])]
    body = body_of({"model": agent["model"], "messages": said}, streams=False)
    tools = agent.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise BadRequest(f"an agent has at most {MAX_TOOLS} tools", param="agent.tools")
    if tools:
        body["tools"] = [_tool(tool, f"agent.tools[{at}]") for at, tool in enumerate(tools)]
    return orjson.dumps(body)


def turn_of(asked: Fields, ids: tuple[str, str], began: str, ended: str, answer: Fields) -> Fields:
    """Return the turn made from a chat's answer; `ids` are those of the turn and of its new step."""
    match answer:
        case {"choices": [{"message": dict(message), **rest}, *_]} if isinstance(
            calls := message.get("tool_calls") or [], list
        ):
            reason = _REASONS.get(str(rest.get("finish_reason")), "stop")
            text = message.get("content")
            said = [*_said(ids[1], text if isinstance(text, str) else "", calls, reason)]
        case _:
            return failed(asked, ids, began, ended, "the model's answer is not a chat")
    step = {
        "id": ids[1],
        "role": "assistant",
        "stepType": "tool_request" if calls else "assistant_response",
        "messages": said,
        "timestamp": ended,
    }
    usage = answer.get("usage")
    more = {"metadata": {"usage": usage}} if isinstance(usage, dict) else {}
    return _turn(asked, ids, began, ended, status="completed", steps=[step]) | more


def failed(asked: Fields, ids: tuple[str, str], began: str, ended: str, why: str) -> dict[str, Any]:
    """Return the turn of a chat that failed."""
    made = _turn(asked, ids, began, ended, status="failed", steps=[])
    return made | {"metadata": {"error": why}}


def _turn(
    asked: Fields,
    ids: tuple[str, str],
    began: str,
    ended: str,
    *,
    status: str,
    steps: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "id": ids[0],
        "steps": [{"id": f"{ids[1]}_asked", "timestamp": began, **asked["userStep"]}, *steps],
        "startTime": began,
        "endTime": ended,
        "status": status,
    }


def _instructions(agent: Fields) -> Iterator[dict[str, object]]:
    named, about = agent.get("name"), agent.get("description")
    told = [f"You are {named}."] if isinstance(named, str) and named else []
    told += [about] if isinstance(about, str) and about else []
    if told:
        yield {"role": "system", "text": " ".join(told)}


def _messages(steps: Sequence[object]) -> Iterator[object]:
    for at, step in enumerate(steps):
        match step:
            case {"messages": list(messages), **rest}:
                pass
            case _:
                raise BadRequest("a step has `messages`", param=f"turnHistory[{at}]")
        # An answer to a request for tools has the role `tool`, whatever role the caller gives.
        usual = "tool" if rest.get("stepType") == "tool_response" else rest.get("role", "user")
        for message in messages:
            if not isinstance(message, dict) or message.get("tool_call"):
                yield message
            elif usual == "tool":
                yield {**message, "role": "tool"}
            else:
                yield {"role": usual, **message}


def _tool(tool: object, where: str) -> dict[str, object]:
    match tool:
        case {"name": str(name), **rest}:
            pass
        case _:
            raise BadRequest("a tool has a name", param=where)
    if rest.get("tool_type", "zeroshot") != "zeroshot":
        raise BadRequest(
            "this service runs no tools: only zeroshot tools are supported",
            param=f"{where}.tool_type",
        )
    given = rest.get("parameters") or []
    if not isinstance(given, list):
        raise BadRequest("the parameters of a tool are a list", param=f"{where}.parameters")
    named = [*map(_parameter, given, range(1, len(given) + 1))]
    schema = {"type": "object", "properties": dict(named), "required": [name for name, _ in named]}
    function: dict[str, object] = {"name": name, "parameters": schema}
    if isinstance(rest.get("description"), str):
        function["description"] = rest["description"]
    return {"type": "function", "function": function}


def _parameter(given: object, number: int) -> tuple[str, dict[str, object]]:
    said = given if isinstance(given, dict) else {}
    name = said.get("name")
    schema: dict[str, object] = {"type": _TYPES.get(str(said.get("type")), "string")}
    if schema["type"] == "array":
        schema["items"] = {"type": _TYPES.get(str(said.get("itemType")), "string")}
    if isinstance(said.get("description"), str):
        schema["description"] = said["description"]
    return (name if isinstance(name, str) and name else f"arg{number}"), schema


def _said(id_: str, text: str, calls: Sequence[object], reason: str) -> Iterator[dict[str, object]]:
    end = {"eot": reason != "max-length", "is_complete": True, "finish_reason": reason}
    if text or not calls:
        yield {"id": id_, "text": text, **end}
    for at, call in enumerate(calls):
        match call:
            case {"function": {"name": str(name), "arguments": str(written)}}:
                made = {"name": name, "arguments": [_arguments(written)]}
                yield {"id": f"{id_}_{at}", "tool_call": made, **end}


def _arguments(written: str) -> object:
    try:
        said = orjson.loads(written or "{}")
    except orjson.JSONDecodeError:
        return {"unparsed": written}
    return said if isinstance(said, dict) else {"value": said}


_BUSY = frozenset({429, 503})


class AgentsProvider:
    """Turns of agents, over the models of a node."""

    types: Mapping[ModelType, str] = MappingProxyType({ModelType.AGENTS: LLAMA_STACK})
    cid = ""

    def __init__(self, plan: ProviderPlan, node: str) -> None:
        self._asker = Asker(node)
        self._at_one_time = asyncio.Semaphore(plan.concurrency)

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
        asked = await object_of(http)
        try:
            chat = chat_of(asked)
        except BadRequest as bad:
            raise Fault(400, str(bad), param=bad.param) from bad
        ids, began = (new_id("turn_"), new_id("step_")), _now()
        async with self._at_one_time:
            heard = await self._asker.post("/v1/chat/completions", chat)
        if heard.status in _BUSY or 400 <= heard.status <= 499:
            return passed(heard)
        try:
            answer = orjson.loads(heard.body)
        except orjson.JSONDecodeError:
            answer = None
        if heard.status != 200 or not isinstance(answer, dict):
            why = f"no answer of the model: status {heard.status}"
            return as_json(failed(asked, ids, began, _now(), why))
        try:
            return as_json(turn_of(asked, ids, began, _now(), answer))
        except orjson.JSONEncodeError:
            why = "the model's answer is nested too deeply"
            return as_json(failed(asked, ids, began, _now(), why))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


provider = AgentsProvider
