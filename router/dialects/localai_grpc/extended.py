"""Parameters of llama.cpp's server that a backend has as well: none is OpenAI's; LocalAI's own clients know them."""

from collections.abc import Callable, Mapping

from router.canonical.values import flag, number, text, whole
from router.errors import BadRequest
from router.openai.result_writers import refused

MAX_GRAMMAR = 256 * 1024
"""Characters of a grammar."""

_MOST = 2**31 - 1

_READ: Mapping[str, tuple[str, Callable[[Mapping[str, object], str], object]]] = {
    "grammar": ("Grammar", lambda fields, name: text(fields, name, MAX_GRAMMAR)),
    "ignore_eos": ("IgnoreEOS", flag),
    "mirostat": ("Mirostat", lambda fields, name: whole(fields, name, 0, 2)),
    "mirostat_eta": ("MirostatETA", lambda fields, name: number(fields, name, 0, 1)),
    "mirostat_tau": ("MirostatTAU", lambda fields, name: number(fields, name, 0, 100)),
    "n_keep": ("NKeep", lambda fields, name: whole(fields, name, -1, _MOST)),
    "repeat_last_n": ("Repeat", lambda fields, name: whole(fields, name, -1, _MOST)),
}

NAMES = frozenset(_READ)
"""Fields that are read here."""


def said(others: Mapping[str, object]) -> dict[str, object]:
    """Say in fields of `PredictOptions` what a request says in those words; raise `WorkerRejected` for a wrong value."""
    try:
        return {
            field: read(others, name) for name, (field, read) in _READ.items() if name in others
        }
    except BadRequest as error:
        raise refused(str(error), error.param or "") from error
