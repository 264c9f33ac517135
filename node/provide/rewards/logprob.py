"""Reward for likelihood: the mean log probability of the response's tokens after the prompt, if the worker returns it.

Workers that echo prompts with log probabilities return it (vLLM, llama-cpp-python); other workers ignore the parameters.
"""

from typing import Any

from node.provide.asker import Asker
from node.provide.rewards.pair import Pair, Score, answer_of, fault


async def score(asker: Asker, pair: Pair) -> Score:
    """Let a model compute how likely a response is."""
    whole = f"{pair.prompt}\n{pair.response}"
    body = {"prompt": whole, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    said = await answer_of(asker, pair, "/v1/completions", body)
    found = _logprobs(said, len(pair.prompt) + 1, len(whole))
    if not found:
        raise fault(
            "the reward model's worker does not return the log probabilities of prompts", "reward"
        )
    return Score(sum(found) / len(found), sum(found))


def _logprobs(said: dict[str, Any], begin: int, end: int) -> list[float]:
    """Return the log probabilities of the tokens that begin in this part of an echoed prompt."""
    match said:
        case {
            "choices": [{"logprobs": {"token_logprobs": list(probs), "text_offset": list(at)}}, *_]
        }:
            pairs = zip(probs, at, strict=False)
            return [
                float(p)
                for p, o in pairs
                if isinstance(o, int) and begin <= o < end and isinstance(p, int | float)
            ]
    return []
