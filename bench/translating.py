"""What does it cost to speak a worker's own protocol? CPU time of one request, and of one event of a stream, without sockets.

usage: python -m bench.translating

Workers of OpenAI's protocol pay none of it: their bytes are passed on.
"""

import time
from collections.abc import Callable

import orjson

from router import canonical
from router.dialects.tgi_http import words
from router.dialects.tgi_http.telling import Stream
from router.rendering import Form
from router.requests import Kind, Request
from router.sse import Splitter

ROUNDS = 5

_TEXT = "x" * 2_000
_ASKED = {
    Kind.CHAT: {"messages": [{"role": "user", "content": _TEXT}]},
    Kind.COMPLETION: {"prompt": _TEXT},
}
_CHUNK = {"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}
_SAID = {
    Kind.CHAT: {"id": "", "created": 1, "model": "own", "choices": [_CHUNK]},
    Kind.COMPLETION: {
        "index": 1,
        "token": {"id": 5, "text": " word", "logprob": -0.5, "special": False},
        "generated_text": None,
        "details": None,
    },
}


def request_of(kind: Kind) -> Request:
    """Ask for a stream, with 2 KB of text."""
    sampling = {"stream": True, "temperature": 0.5, "stop": ["END"]}
    body = orjson.dumps({"model": "m", **_ASKED[kind], **sampling})
    return Request("r", kind, "m", body, "application/json", stream=True)


def asking(kind: Kind) -> Callable[[], bytes]:
    """Return what reads a request and writes it in TGI's words."""
    request = request_of(kind)
    return lambda: orjson.dumps(words.read(request)[1].bodies[0])


def passing(kind: Kind) -> Callable[[], bytes]:
    """Return what reads one event of TGI's and writes it in OpenAI's form."""
    event = b"data:" + orjson.dumps(_SAID[kind]) + b"\n\n"
    told, form = Stream(canonical.read(request_of(kind))), Form("x", 1, "m", kind)
    splitter = Splitter(max_event_bytes=len(event))

    def run() -> bytes:
        [said] = splitter.feed(event)
        return b"".join(map(form.event, told.take(said.data)))

    return run


def microseconds(run: Callable[[], bytes], times: int) -> float:
    """Return the CPU time of one run: the least of several rounds, since others only add to it."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            run()
        rounds.append((time.process_time() - began) / times * 1e6)
    return min(rounds)


def main() -> None:
    """Print a row for each kind."""
    for kind in (Kind.CHAT, Kind.COMPLETION):
        request, event = microseconds(asking(kind), 2_000), microseconds(passing(kind), 20_000)
        print(f"{kind.value}: {request:.1f} µs for a request, {event:.1f} µs for an event")


if __name__ == "__main__":
    main()
