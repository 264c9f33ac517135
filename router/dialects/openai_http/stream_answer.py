"""Stream of a worker of the OpenAI protocol, with the model's registered name."""

from router.answer import Answer, Route
from router.dialects.openai_http.json_answer import model_in
from router.dialects.openai_http.stream_events import LAST, LOOKED_AT_FIRST, split_answer
from router.http.exchange import Exchange
from router.openai.event_texts import contains
from router.openai.sse import data_of


async def stream_answer(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Return the answer once the stream has an event with data; raise `WorkerFailed` if that is a failure."""
    chunk = await exchange.some()
    end = chunk.find(b"\n\n") + 2
    # Nearly all streams begin with a short event that has the registered name, and need not be split.
    if 2 < end <= LOOKED_AT_FIRST and not contains(begins := chunk[:end], b"\r"):
        first = data_of(begins)
        if first and (first == LAST or model_in(first) == name):
            return exchange.answer(chunk, Route.LOCAL)
    return await split_answer(exchange, chunk, name, max_event_bytes)
