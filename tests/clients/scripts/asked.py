"""Shared part of these scripts: what they ask the node for, and how they tell the test what came; nothing of any client."""

import json
import sys
from collections.abc import Callable

NODE, TALKER, CALLER, READER, BREAKER, SPEAKER, LISTENER = sys.argv[1:]
"""The node's URL without a path, and its models.

One talks, one calls a tool, one makes embeddings, one dies in its stream, one speaks and one understands it.
"""

NOBODY = "nobody-has-this"
PROMPT = "Tell me a story about a vine."
MESSAGES = [{"role": "user", "content": PROMPT}]
BEGINNING = "Once upon a time"
SPEECH, VOICE = "hello world", "en-us+f2"
SHORT = 12
"""Tokens of an answer; the model never stops earlier by itself."""

KEY = "sk-nobody-checks-it"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the sky does over a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def refusal(kind: type[Exception], ask: Callable[[], object]) -> dict[str, str]:
    """Make a request that must fail; return the class and the words of the exception."""
    try:
        ask()
    except kind as error:
        return {"raised": type(error).__name__, "words": str(error)}
    return {"raised": "", "words": ""}


def tell(**result: object) -> None:
    """Write what was seen as one line of JSON, the last one of standard output."""
    sys.stdout.write(json.dumps(result) + "\n")
