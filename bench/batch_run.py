"""Run of a batch in a measurement: a provider beside a node; lines in, seconds and answers out."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import openai
import orjson

from node.demo.play import Actor
from tests.swarm.nodes import Node, Swarm, python
from tests.swarm.waiting import until


def provide(swarm: Swarm, node: Node) -> Actor:
    """Start the provider of batches."""
    options = ("--node", node.http, "--data-dir", str(node.folder), "--concurrency", "12")
    return swarm.start_program("batches", *python("-m", "node", "provide", "batch", *options))


async def answered(
    ask: openai.AsyncOpenAI, bodies: Sequence[Mapping[str, object]], *, within: float = 120
) -> tuple[float, list[dict[str, Any]]]:
    """Run a batch of these requests; return the seconds that it takes, and the answers."""
    rows = (
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n, body in enumerate(bodies)
    )
    content = b"\n".join(map(orjson.dumps, rows))
    file = await ask.files.create(file=("lines.jsonl", content), purpose="batch")
    began = time.monotonic()
    made = await ask.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )

    async def over() -> bool:
        nonlocal made
        made = await ask.batches.retrieve(made.id)
        return made.status == "completed"

    await until(over, within=within, otherwise="the batch is not over")
    seconds = time.monotonic() - began
    assert made.output_file_id is not None
    text = (await ask.files.content(made.output_file_id)).text
    answers = [orjson.loads(row)["response"]["body"] for row in text.splitlines()]
    assert len(answers) == len(bodies)
    return seconds, answers
