"""How does a conversation begin? A chain of hashes, one for each message: equal as far as two conversations are equal.

The n-th hash covers the first n messages, so a chat that goes on has the hashes of all its earlier requests among its own.
"""

from hashlib import blake2b

import orjson

from router.requests import Request

MAX_BYTES = 1024 * 1024
"""Longer bodies have no chain: reading them once more would cost more than a warm cache saves the router."""

MAX_LINKS = 256
"""Messages that are looked at."""


def chain(request: Request) -> tuple[bytes, ...]:
    """Return the hashes of the first message, the first two, and so on; nothing for what is no conversation."""
    if len(request.body) > MAX_BYTES or "json" not in request.content_type:
        return ()
    said = orjson.loads(request.body)
    messages = said.get("messages") if isinstance(said, dict) else None
    if isinstance(said, dict) and messages is None and isinstance(said.get("prompt"), str):
        messages = [said["prompt"]]
    if not isinstance(messages, list):
        return ()
    links: list[bytes] = []
    link = request.model.encode()
    for message in messages[:MAX_LINKS]:
        link = blake2b(link + orjson.dumps(message), digest_size=16).digest()
        links.append(link)
    return tuple(links)
