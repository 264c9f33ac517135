"""Reward by a reranker: the relevance of the response to the prompt."""

from node.provide.asker import Asker
from node.provide.rewards.pair import Pair, Score, answer_of, fault


async def score(asker: Asker, pair: Pair) -> Score:
    """Let a reranking model score a response."""
    body = {"query": pair.prompt, "documents": [pair.response]}
    match await answer_of(asker, pair, "/v1/rerank", body):
        case {"results": [{"relevance_score": int() | float() as found}, *_]}:
            return Score(float(found))
    raise fault("the reranker's answer holds no score", "reward", 502)
