"""Mapping of a request to RemoteLLM's words: prompts and stop strings; everything else is the worker's own constant."""

from router.canonical import Asked
from router.errors import BadRequest, WorkerUnable
from router.requests import Kind
from router.translate.request import Orders, Wording, unheard
from router.translate.templates import Rendered, rendered
from router.workers import Template, Worker

GENERATE = "Generate"


def orders(asked: Asked, worker: Worker) -> Orders:
    """Say a request for text: all prompts are one batch, in which one is asked as often as `n` needs."""
    prompts, stops = asked.prompts, asked.stop
    if asked.kind is Kind.CHAT:
        # A protocol of texts alone: its models are more often older than templates.
        own = "plain" if worker.template in ("", "worker") else worker.template
        chat = _rendered(own, asked)
        prompts, stops = (chat.prompt,), (*stops, *chat.stops)
    body = {"prompts": prompts, "stop": tuple(stops)}
    return Orders(GENERATE, (body,), unheard(asked))


def stops_of(said: Orders) -> tuple[str, ...]:
    """Return the strings at which a text ends: the caller's, and those of a chat's template."""
    stops = said.bodies[0]["stop"]
    return stops if isinstance(stops, tuple) else ()


def _rendered(template: Template, asked: Asked) -> Rendered:
    try:
        return rendered(template, asked.messages)
    except BadRequest as error:
        raise WorkerUnable(str(error), param=error.param or "messages") from error


WORDS = Wording(name="RemoteLLM", kinds=frozenset({Kind.CHAT, Kind.COMPLETION}), orders=orders)
