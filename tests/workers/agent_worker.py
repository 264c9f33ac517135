"""Stub worker that has a coding agent run one command, after a tool search if the agent offers one.

`python -m tests.workers.agent_worker FOLDER` prints `ready url=…`, and stores the requests in the folder in order.
"""

import argparse
import asyncio
import itertools
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.workers.serving import served

COMMAND = "echo grapes > vine.txt"
CALLS: tuple[Mapping[str, Mapping[str, object]], ...] = (
    {"ToolSearch": {"query": "select:WebFetch", "max_results": 1}},
    {
        "Bash": {"command": COMMAND, "description": "Write a file"},
        "exec_command": {"cmd": COMMAND},
    },
)
"""Tools that are called one after the other if offered, by the names that agents give them."""
SAID = "It grows grapes."
EDIT = "vine.txt\n```\ngrapes\n```"
"""The answer if no tool is offered: a file in the form that aider reads."""
USAGE = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def answered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message for a request: the next tool call, or the text after the last one."""
    offered = {tool["function"]["name"] for tool in fields.get("tools") or ()}
    calls = [(name, call) for step in CALLS for name, call in step.items() if name in offered]
    done = sum(message["role"] == "tool" for message in fields["messages"])
    if done >= len(calls):
        return {"role": "assistant", "content": SAID if offered else EDIT}
    name, arguments = calls[done]
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    call = {"id": f"call_{done}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _pieces(text: str) -> Iterator[str]:
    return (text[begin : begin + 8] for begin in range(0, len(text), 8))


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message as deltas of a stream: its words, or a call whose arguments come in pieces."""
    yield {"role": "assistant", "content": ""}
    yield from ({"content": piece} for piece in _pieces(message["content"] or ""))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield {"tool_calls": [{"index": 0, **call, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def _events(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events of a stream, with usage before the final `[DONE]`."""
    message = answered(fields)
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": fields["model"]}
    ends = "tool_calls" if "tool_calls" in message else "stop"
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in _deltas(message)]
    for choice in (*choices, {"index": 0, "delta": {}, "finish_reason": ends}):
        yield b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
    yield b"data: " + orjson.dumps({**head, "choices": [], "usage": USAGE}) + b"\n\n"
    yield b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Engine:
    """Server that answers chats in OpenAI's form, and stores each request as a file."""

    folder: Path
    numbers: Iterator[int]

    async def models(self, request: web.Request) -> web.Response:
        """List one model."""
        return web.json_response({"object": "list", "data": [{"id": "llama", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, as a stream if it asks for one."""
        body = await request.read()
        (self.folder / f"{next(self.numbers):03}.json").write_bytes(body)
        fields = orjson.loads(body)
        if fields.get("stream"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for event in _events(fields):
                await response.write(event)
            await response.write_eof()
            return response
        message = answered(fields)
        ends = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": ends}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": fields["model"]}
        return web.json_response({**answer, "choices": [choice], "usage": USAGE})


async def _serve(folder: Path) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engine = Engine(folder, itertools.count())
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/v1/chat/completions", engine.chat)
    async with served(app) as url:
        sys.stdout.write(f"ready url={url}\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where the requests are kept")
    asyncio.run(_serve(parser.parse_args().folder))


if __name__ == "__main__":
    main()
