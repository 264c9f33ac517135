"""Reward for a length: 1 from `min` to `max`, and proportionally less outside. `unit` is `characters` (default) or `words`."""

from node.provide.asker import Asker
from node.provide.rewards.pair import Pair, Score, fault, number_in


async def score(_: Asker, pair: Pair) -> Score:
    """Score the length of a response."""
    least, most = number_in(pair, "min"), number_in(pair, "max")
    if least is None and most is None:
        raise fault("`min` or `max` is needed", "scoring_function.params")
    unit = pair.params.get("unit", "characters")
    if unit not in ("characters", "words"):
        raise fault("`unit` is characters or words", "scoring_function.params.unit")
    found = len(pair.response.split()) if unit == "words" else len(pair.response)
    if least is not None and found < least:
        return Score(found / least)
    if most is not None and found > most:
        return Score(max(0.0, most / found))
    return Score(1.0)
