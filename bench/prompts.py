"""Cache hits of a batch whose lines share prefixes, as real llama.cpp workers report them.

Twenty system prompts in 200 shuffled lines, two nodes with a worker of four slots each, `modelvine provide batch` at one of them.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai

from bench.batch_run import answered, provide
from bench.serving.scene import Row
from node.demo.play import Actor
from tests.swarm.client import Client
from tests.swarm.nodes import Swarm

PROMPTS, LINES, SLOTS = 20, 200, 4

WORDS = ("harbour", "garden", "kitchen", "winter", "river", "market", "engine", "paper", "window", "captain", "teacher",
    "doctor", "baker", "never", "always", "often", "before", "after", "under", "over", "with", "without", "because")  # fmt: skip
"""Words of the system prompts."""

LONG = 220
"""Words of a system prompt, some 250 tokens."""

GOAL = 0.9
"""Share of the cacheable tokens that must be found in a cache."""

_WITHIN = 900.0


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens of all prompts, those found in a cache, and those that could be if each system prompt were read only once."""

    tokens: int
    cached: int
    possible: int


async def measure(swarm: Swarm, client: Client) -> list[Row]:
    """Run one batch, and sum up the workers' cache hits."""
    nodes = swarm.start_all("one", "two")
    workers = [_worker(swarm, name) for name in ("first", "second")]
    model = workers[0].fields["model"]
    for node, its in zip(nodes, workers, strict=True):
        await client.register(node, "p", [model], _url(its, "/v1"), capacity=SLOTS)
    provide(swarm, nodes[0])
    await client.listed(nodes, model, "batch")
    rng = random.Random(1)
    systems = [f"{' '.join(rng.choices(WORDS, k=LONG))}." for _ in range(PROMPTS)]
    sequence = [systems[number % PROMPTS] for number in range(LINES)]
    rng.shuffle(sequence)
    bodies = [
        {"model": model, "messages": chat(system, f"{number} and then?"), "max_tokens": 4}
        for number, system in enumerate(sequence)
    ]
    async with openai.AsyncOpenAI(base_url=f"{nodes[1].http}/v1", api_key="x") as ask:
        seconds, answers = await answered(ask, bodies, within=_WITHIN)
    sizes = {system: await _tokens(client, workers[0], system) for system in systems}
    totals = sum_up(sequence, answers, sizes)
    part, possible = totals.cached / totals.tokens, totals.possible / totals.tokens
    label = f"tokens found in caches, {PROMPTS} system prompts in {LINES} lines ÷ the {possible:.0%} that can be"
    measured = f"{part / possible:.2f} ({part:.0%}, in {seconds:.0f} s)"
    return [Row(label, f"≥ {GOAL}", measured, part >= GOAL * possible)]


def chat(system: str, text: str) -> list[dict[str, str]]:
    """Return the messages of a line."""
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def sum_up(
    systems: Sequence[str], answers: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]
) -> Found:
    """Sum up the usage of all answers, given the system prompt of each line and the tokens of each system prompt."""
    usages = [answer["usage"] for answer in answers]
    return Found(
        sum(usage["prompt_tokens"] for usage in usages),
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        sum((count - 1) * sizes[system] for system, count in Counter(systems).items()),
    )


def _worker(swarm: Swarm, name: str) -> Actor:
    options = ("--threads", "1", "--slots", str(SLOTS), "--temperature", "0")
    return swarm.start_worker(name, *options, module="node.demo.worker")


def _url(its: Actor, path: str) -> str:
    return its.ready.split()[1].removesuffix("/v1") + path


async def _tokens(client: Client, its: Actor, system: str) -> int:
    """Return the number of tokens of a chat before the user's text."""
    request = {"messages": chat(system, "?!?")}
    async with client.session.post(_url(its, "/apply-template"), json=request) as response:
        written = (await response.json())["prompt"]
    body = {"content": written.partition("?!?")[0]}
    async with client.session.post(_url(its, "/tokenize"), json=body) as response:
        return len((await response.json())["tokens"])
