"""Synthetic data, Llama Stack 0.0.1: a model's responses to a prompt, with scores, reduced by a filter.

Filters: `threshold` keeps scores of `min` or more, `top_k` the best `k` of each prompt, `best_of` the best one.
"""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from node.faces.llama_stack.request_mapping import body_of
from node.provide.asker import Asker, NodeAnswer
from node.provide.rewards import ELSEWHERE, FUNCTIONS, Unscored, fault, scored
from router.errors import BadRequest

ENDPOINT = "/synthetic_data_gen"
SCORING = "/reward_scoring"

MAX_GENERATIONS = 64

FILTERS = ("threshold", "top_k", "best_of")

Point = dict[str, Any]


def check(fields: Mapping[str, Any]) -> None:
    """Raise `Unscored` for a job none of whose lines could succeed, or for such a line."""
    number, reward = fields.get("num_generations", 1), fields.get("scoring_function")
    if not isinstance(number, int) or not 1 <= number <= MAX_GENERATIONS:
        raise fault(f"`num_generations` is a number up to {MAX_GENERATIONS}", "num_generations")
    if not isinstance(fields.get("model"), str):
        raise fault("`model` is needed", "model")
    if reward is not None:
        check_function(reward)
    elif fields.get("filtering_function") is not None:
        raise fault("a filter needs a `scoring_function`", "scoring_function")
    kept([], fields.get("filtering_function"))


def check_function(function: object) -> None:
    """Raise `Unscored` unless there is a scoring function of this name."""
    match function:
        case {"name": str(name)} if name in FUNCTIONS or name in ELSEWHERE:
            return
    names = ", ".join(sorted({*FUNCTIONS, *ELSEWHERE}))
    raise fault(f"`scoring_function` needs a `name`, one of {names}", "scoring_function")


async def points_of(asker: Asker, fields: Mapping[str, Any], custom_id: str) -> NodeAnswer:
    """Return the data points of one prompt as lines of JSON, or the first answer that failed."""
    prompt = {"model": fields.get("model"), "messages": fields.get("messages")}
    try:
        # A file may have complete lines of its own, which no job's parameters were checked for.
        check(fields)
        chat = orjson.dumps(body_of({**prompt, "options": fields.get("options")}, streams=False))
    except Unscored as unscored:
        return unscored.heard
    except BadRequest as bad:
        return fault(str(bad), bad.param or "messages").heard
    points: list[Point] = []
    for index in range(fields.get("num_generations", 1)):
        reply = await asker.post("/v1/chat/completions", chat)
        if reply.status != 200:
            return reply
        response = _response(reply.body)
        point: Point = {
            "custom_id": custom_id,
            "index": index,
            "prompt": prompt["messages"],
            "response": response,
        }
        if fields.get("scoring_function") is not None:
            pair = {
                "prompt_with_response": [*point["prompt"], response],
                "reward": fields.get("reward_model"),
                "scoring_function": fields["scoring_function"],
            }
            reply = await score(asker, pair)
            if reply.status != 200:
                return reply
            payload = orjson.loads(reply.body)
            point |= {name: payload[name] for name in ("score", "logprob") if name in payload}
        points.append(point)
    try:
        chosen = kept(points, fields.get("filtering_function"))
    except Unscored as unscored:
        return unscored.heard
    return NodeAnswer(200, b"".join(orjson.dumps(point) + b"\n" for point in chosen))


async def score(asker: Asker, fields: Mapping[str, Any]) -> NodeAnswer:
    """Score a pair, here or at a reward model with its own function."""
    match fields.get("scoring_function"):
        case {"name": str(name)} if name in ELSEWHERE:
            return await asker.post(SCORING, orjson.dumps(fields))
    return await scored(asker, fields)


def kept(points: list[Point], by: object) -> list[Point]:
    """Return the points that a filter keeps, in their original order; raise `Unscored`."""
    if by is None:
        return points
    match by:
        case {"name": str(name), **rest} if name in FILTERS:
            params = rest.get("params") or {}
        case _:
            names = ", ".join(FILTERS)
            raise fault(
                f"`filtering_function` needs a `name`, one of {names}", "filtering_function"
            )
    if not isinstance(params, dict):
        raise fault("`params` is an object", "filtering_function.params")
    if name == "threshold":
        least = params.get("min")
        if isinstance(least, bool) or not isinstance(least, int | float):
            raise fault("`min` is a number", "filtering_function.params.min")
        return [point for point in points if _score(point) >= least]
    count = 1 if name == "best_of" else params.get("k")
    if not isinstance(count, int) or count < 1:
        raise fault("`k` is a number from 1", "filtering_function.params.k")
    best = sorted(points, key=_score, reverse=True)[:count]
    return sorted(best, key=lambda point: int(point["index"]))


def _score(point: Point) -> float:
    value = point.get("score")
    return float(value) if isinstance(value, int | float) else -math.inf


def _response(body: bytes) -> dict[str, object]:
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        payload = None
    match payload:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return {"role": "assistant", "text": text}
    return {"role": "assistant", "text": ""}
