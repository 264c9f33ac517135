"""Scoring of one request, `POST /reward_scoring` of Llama Stack 0.0.1, by the function that it names."""

from collections.abc import Mapping
from typing import Any

import orjson

from node.provide.asker import Asker, NodeAnswer
from node.provide.files import new_id
from node.provide.rewards import exact_match, length, llm_judge, logprob, regex, rerank
from node.provide.rewards.pair import Pair, RewardFunction, Unscored, fault
from router.errors import BadRequest
from router.services.llama_stack_words import conversation

FUNCTIONS: Mapping[str, RewardFunction] = {
    "exact_match": exact_match.score,
    "length": length.score,
    "llm_judge": llm_judge.score,
    "logprob": logprob.score,
    "regex": regex.score,
    "rerank": rerank.score,
}

ELSEWHERE = frozenset({"score", "classify"})
"""Functions that run at a reward model itself, as vLLM serves them."""


async def scored(asker: Asker, asked: Mapping[str, Any]) -> NodeAnswer:
    """Score a pair, and return the answer: a score or an error."""
    try:
        pair, function = read(asked)
        found = await function(asker, pair)
    except Unscored as unscored:
        return unscored.heard
    said = {"id": new_id("score_"), "score": found.score}
    return NodeAnswer(
        200, orjson.dumps(said | ({} if found.logprob is None else {"logprob": found.logprob}))
    )


def read(asked: Mapping[str, Any]) -> tuple[Pair, RewardFunction]:
    """Return the pair to score and the function; raise `Unscored`."""
    name, params = "", dict[str, Any]()
    match asked.get("scoring_function"):
        case {"name": str(name), **rest}:
            params = rest.get("params") or {}  # type: ignore[assignment]
    if name not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS))
        raise fault(f"`scoring_function` needs a `name`, one of {known}", "scoring_function")
    if not isinstance(params, dict):
        raise fault("`params` is an object", "scoring_function.params")
    try:
        prompt, response = conversation(asked)
    except BadRequest as bad:
        raise fault(str(bad), bad.param or "prompt_with_response") from bad
    model = asked.get("reward")
    return Pair(prompt, response, model if isinstance(model, str) else "", params), FUNCTIONS[name]
