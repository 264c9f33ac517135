"""Exchange with a LocalAI backend: what all requests that are answered by whole messages have in common."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from router.answer import Answer, complete_answer
from router.canonical.values import WithOtherFields, dropped_names
from router.errors import WorkerFailed
from router.openai.usage import Usage
from router.requests import Request
from router.select.fitness import estimated_tokens
from router.translate.request import parameter_headers

NAME = "LocalAI"

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class BackendJob:
    """One request to a backend.

    `model` is the name that callers know, `own_model` the backend's own. `ask` makes an RPC by its name, with the fields of its
    message, and returns the reply; it raises a `WorkerError`. `fetch` returns the image whose URL a field contains, see
    `router.http.fetch`. `voices` is the directory of the operator's voice files, if there is one.
    """

    request: Request
    model: str
    own_model: str
    ask: Callable[[str, Mapping[str, object]], Coroutine[Any, Any, Any]]
    fetch: Callable[[str, str], Coroutine[Any, Any, bytes]]
    voices: str = ""


def backend_answer(
    body: bytes,
    content_type: str = JSON,
    *,
    usage: Usage | None = None,
    unheard: Sequence[str] = (),
    heard: Sequence[str] = (),
) -> Answer:
    """Return an answer in one piece; `unheard` are parameters that had no effect, `heard` ones that few workers support."""
    answer = complete_answer(body, content_type)
    answer.usage = usage
    answer.headers = parameter_headers(unheard, heard)
    return answer


def ignored_parameters(asked: WithOtherFields, **said: object) -> list[str]:
    """Return the parameters without effect: those of `said` that the caller set, and all fields that were not read."""
    return [*sorted(name for name, value in said.items() if value), *dropped_names(asked)]


def estimate_usage(*texts: str) -> Usage:
    """Estimate the tokens of texts, which the backend does not report."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return Usage(estimated_tokens(size), 0, estimated=True)


def finite(numbers: Sequence[float]) -> list[float]:
    """Return a backend's numbers; raise `WorkerFailed` if one is not finite."""
    if not all(map(isfinite, numbers)):
        raise WorkerFailed("the worker returned an invalid number")
    return list(numbers)
