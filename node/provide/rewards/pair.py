"""Pair of a prompt and a response to score, helpers for reward functions, and the score that they return."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from node.provide.asker import Asker, NodeAnswer


@dataclass(frozen=True, slots=True)
class Pair:
    """Prompt and response as text. `model` is the reward model, and `params` are the function's own parameters."""

    prompt: str
    response: str
    model: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a response, and its log probability if known."""

    score: float
    logprob: float | None = None


class Unscored(Exception):
    """There is no score. `heard` is the answer for the caller: an error in its request, or a model's answer."""

    def __init__(self, heard: NodeAnswer) -> None:
        super().__init__(f"status {heard.status}")
        self.heard = heard


RewardFunction = Callable[[Asker, Pair], Awaitable[Score]]


def fault(message: str, param: str, status: int = 400) -> Unscored:
    """Return the exception for an error in a field of the request."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": None}
    return Unscored(NodeAnswer(status, orjson.dumps({"error": error})))


def text_in(pair: Pair, name: str, *, longest: int = 65_536) -> str:
    """Return a parameter that must be text; raise `Unscored`."""
    value = pair.params.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        where = f"scoring_function.params.{name}"
        raise fault(f"`{name}` is a text of at most {longest:,} characters", where)
    return value


def number_in(pair: Pair, name: str) -> float | None:
    """Return an optional parameter that must be a number; raise `Unscored`."""
    value = pair.params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(f"`{name}` is a number", f"scoring_function.params.{name}")
    return float(value)


async def answer_of(asker: Asker, pair: Pair, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Query the reward model, and return its JSON answer; raise `Unscored` for anything else."""
    if not pair.model:
        raise fault("this function needs a reward model", "reward")
    heard = await asker.post(path, orjson.dumps({"model": pair.model, **body}))
    if heard.status != 200:
        raise Unscored(heard)
    try:
        said = orjson.loads(heard.body)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        raise fault("the reward model's answer is not a JSON object", "reward", 502)
    return said
