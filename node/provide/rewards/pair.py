"""Pair to be scored, what a function may use, and what it returns."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from node.provide.asker import Asker, NodeAnswer


@dataclass(frozen=True, slots=True)
class Pair:
    """What was asked and what was answered, as text. `model` is the reward model, and `params` are the function's own."""

    prompt: str
    response: str
    model: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """How good a response is, and the log probability of it where that is known."""

    score: float
    logprob: float | None = None


class Unscored(Exception):
    """There is no score. `heard` is what the caller is told: its own fault, or what a model answered."""

    def __init__(self, heard: NodeAnswer) -> None:
        super().__init__(f"status {heard.status}")
        self.heard = heard


RewardFunction = Callable[[Asker, Pair], Awaitable[Score]]


def fault(message: str, param: str, status: int = 400) -> Unscored:
    """Return the failure that finds fault with a field of the request."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": None}
    return Unscored(NodeAnswer(status, orjson.dumps({"error": error})))


def text_in(pair: Pair, name: str, *, longest: int = 65_536) -> str:
    """Return a parameter that has to be text; raise `Unscored`."""
    value = pair.params.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        where = f"scoring_function.params.{name}"
        raise fault(f"`{name}` is a text of at most {longest:,} characters", where)
    return value


def number_in(pair: Pair, name: str) -> float | None:
    """Return a parameter that may be a number; raise `Unscored`."""
    value = pair.params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(f"`{name}` is a number", f"scoring_function.params.{name}")
    return float(value)


async def answer_of(asker: Asker, pair: Pair, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the reward model; raise `Unscored` for whatever is no answer."""
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
