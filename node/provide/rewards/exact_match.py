"""Reward for the exact expected text: 1 or 0. Surrounding whitespace is ignored, and case with `ignore_case`."""

from node.provide.asker import Asker
from node.provide.rewards.pair import Pair, Score, text_in


async def score(_: Asker, pair: Pair) -> Score:
    """Compare a response with `expected`."""
    expected, said = text_in(pair, "expected").strip(), pair.response.strip()
    if pair.params.get("ignore_case") is True:
        expected, said = expected.casefold(), said.casefold()
    return Score(float(expected == said))
