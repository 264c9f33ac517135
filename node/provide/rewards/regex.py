"""Reward for a pattern: 1 if Python's regular expression `pattern` is found in the response, else 0.

The search runs in a process of its own, which is killed if it takes too long: some patterns never end.
"""

import asyncio
import sys

import orjson

from node.provide.asker import Asker
from node.provide.rewards.pair import Pair, Score, fault, text_in

LONGEST_SEARCH = 2.0
"""Seconds."""

MAX_PATTERN = 2_000

_WHERE = "scoring_function.params.pattern"
_SEARCH = """
import json, re, sys
pattern, text = json.load(sys.stdin)
try:
    print(int(re.search(pattern, text) is not None))
except (re.error, OverflowError, RecursionError) as error:
    print(error)
"""


async def score(_: Asker, pair: Pair) -> Score:
    """Search a response."""
    asked = orjson.dumps([text_in(pair, "pattern", longest=MAX_PATTERN), pair.response])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _SEARCH, stdin=pipe, stdout=pipe
    )
    try:
        async with asyncio.timeout(LONGEST_SEARCH):
            out, _nothing = await process.communicate(asked)
    except TimeoutError:
        raise fault("the pattern takes too long", _WHERE) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if out.strip() not in (b"0", b"1"):
        raise fault(f"`pattern` is invalid: {out.decode(errors='replace').strip()[:200]}", _WHERE)
    return Score(float(out))
