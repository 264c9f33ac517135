"""Tokens of a text, by TGI: as it would before it reads it, with the tokens that frame a text."""

import orjson

from router.canonical import dropped, tokenize
from router.canonical.tokenize import SHAPING, WITH_PIECES, WITH_STRINGS
from router.errors import WorkerFailed
from router.openai.result_writers.tokenize import written, written_out
from router.requests import Request
from router.translate.request import Orders, checked, refuse

PATH = "tokenize"

_TEXTS = frozenset({WITH_PIECES, WITH_STRINGS})
_MOST_TOKEN = 2**32 - 1


def asked(request: Request) -> Orders:
    """Say what is asked; raise `WorkerUnable`, or `WorkerRejected` for a wrong value."""
    wanted = checked(tokenize.read, request)
    refuse("TGI", wanted, SHAPING - _TEXTS)
    unheard = ["add_special_tokens"] if wanted.special is False else []
    unheard += [name for name in dropped(wanted) if name not in _TEXTS]
    return Orders(PATH, ({"inputs": wanted.text},), tuple(unheard))


def told(request: Request, body: bytes) -> bytes:
    """Return OpenAI's JSON of what TGI answers; raise `WorkerFailed` for nonsense."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the worker's answer calls itself JSON and is not") from error
    if not isinstance(said, list):
        raise WorkerFailed("the worker's answer is no list of tokens")
    tokens = [_token(one) for one in said]
    numbers = [number for number, _ in tokens]
    wanted = tokenize.read(request)
    if wanted.texts:
        return written_out(wanted, numbers, [text for _, text in tokens])
    return written(numbers)


def _token(token: object) -> tuple[int, str]:
    match token:
        case {"id": int(number), "text": str(text)}:
            if not isinstance(number, bool) and 0 <= number <= _MOST_TOKEN:
                return number, text
    raise WorkerFailed("the worker's answer holds what is no token")
