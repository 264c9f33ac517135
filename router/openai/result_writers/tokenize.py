"""Writer of tokens, as LocalAI and llama.cpp say it; with their texts, as llama.cpp or vLLM does."""

from collections.abc import Sequence

import orjson

from router.canonical.tokenize import WITH_PIECES, Tokenize


def written(tokens: Sequence[int]) -> bytes:
    """Return the answer with the numbers of these tokens."""
    return orjson.dumps({"tokens": list(tokens)})


def written_out(asked: Tokenize, tokens: Sequence[int], texts: Sequence[str]) -> bytes:
    """Return the answer with the texts of these tokens too, in the form that was asked for."""
    if asked.others.get(WITH_PIECES) is True:
        pairs = zip(tokens, texts, strict=True)
        return orjson.dumps({"tokens": [{"id": one, "piece": text} for one, text in pairs]})
    return orjson.dumps({"tokens": list(tokens), "token_strs": list(texts)})
