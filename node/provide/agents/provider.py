"""Provider of agents, with its parts wired. It stores nothing: a turn carries its whole history."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

import orjson
from aiohttp import web

from node.provide.agents import turns
from node.provide.asker import Asker
from node.provide.face import Fault, as_json, object_of, passed
from node.provide.files import new_id
from node.provide.plan import LLAMA_STACK, ProviderPlan
from registry.records import ModelType
from router.errors import BadRequest

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
            chat = turns.chat_of(asked)
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
            return as_json(turns.failed(asked, ids, began, _now(), why))
        try:
            return as_json(turns.turn_of(asked, ids, began, _now(), answer))
        except orjson.JSONEncodeError:
            why = "the model's answer is nested too deeply"
            return as_json(turns.failed(asked, ids, began, _now(), why))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


provider = AgentsProvider
