"""Prefix hashes of a conversation, as a chain: equal as far as two conversations are equal, message by message.

The n-th hash covers all before it too, so a continued chat has the hashes of its earlier requests among its own. A long message
has one hash for every `BLOCK` as well: two questions about one document share the document's.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import orjson
from blake3 import blake3

from registry.values import value_class
from router.openai.members import elements, wanted

MIN_BYTES = 1024
"""Shorter bodies have no chain: a worker reads them anew very fast."""

MAX_BYTES = 1024 * 1024
"""Longer bodies have no chain: reading them once more would cost the router more than a warm cache saves."""

MAX_LINKS = 256
"""The most prefixes of one conversation; what follows them is ignored."""

BLOCK = 4096
"""Bytes of a message with a hash of their own: about a thousand tokens, of which a worker reads a cut-off rest again."""

CONVERSATION = ("messages", "prompt", "tools")
"""The fields of a body that make a conversation."""

_ROLE = wanted(("role",), (), (), (), None)
_MAX_ELEMENTS = 1024  # messages that are looked at: a body of a megabyte may have half a million
_HASH_BYTES = 16
_EVERYBODYS = ("system", "developer")


@value_class
class Prefix:
    """One prefix of a conversation: its hash, and its length in bytes."""

    digest: bytes
    size: int


@value_class
class Prefixes:
    """The prefixes of a conversation, in growing length; none for what is no conversation.

    The first `shared` of them cover what a service puts before all its chats: tools and system messages. `opening` is the index
    of the prefix that ends with the user's first message. `goes_on` says that the conversation already has an answer.
    """

    chain: tuple[Prefix, ...] = ()
    shared: int = 0
    opening: int = 0
    goes_on: bool = False

    @property
    def size(self) -> int:
        """The number of bytes that the prefixes cover."""
        return self.chain[-1].size if self.chain else 0

    @property
    def key(self) -> bytes:
        """The identity of the conversation: the same from its first request on, and on every node."""
        return self.chain[self.opening].digest if self.chain else b""


NONE = Prefixes()


def prefixes_of(fields: Mapping[str, object], size: int) -> Prefixes:
    """Return the prefixes of the conversation in a request whose body has these fields and `size` bytes.

    Those of `CONVERSATION` may be JSON instead of values.
    """
    if not MIN_BYTES <= size <= MAX_BYTES:
        return NONE
    try:
        messages = _messages_of(fields)
        # A chat template puts the tools before everything else.
        chain = [*_chain(_tools_of(fields), messages)] if messages else []
    except orjson.JSONEncodeError:
        # The body can be parsed, but is nested too deeply to be serialised: no worker finds a conversation in it.
        return NONE
    if not chain:
        return NONE
    spoken = len([*takewhile(_is_everybodys, messages)])
    # If there are only system messages, the last prefix has to tell conversations apart.
    shared = min(sum(index < spoken for index, _, _ in chain), len(chain) - 1)
    ends = (at for at, (index, complete, _) in enumerate(chain) if complete and index >= spoken)
    return Prefixes(
        tuple(prefix for _, _, prefix in chain),
        shared,
        next(ends, len(chain) - 1),
        any(role == "assistant" for _, role in messages),
    )


_Message = tuple[bytes, object]  # its JSON, as orjson writes it, and its role


def _messages_of(fields: Mapping[str, object]) -> Sequence[_Message]:
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if messages is None or messages == b"null":
        if isinstance(prompt, bytes):
            messages = b"[" + prompt + b"]" if prompt.startswith(b'"') else None
        else:
            messages = [prompt] if isinstance(prompt, str) else None
    if isinstance(messages, bytes):
        parsed = elements(messages, _ROLE, _MAX_ELEMENTS)
        if parsed is not None:
            return parsed
        messages = orjson.loads(messages)
    if not isinstance(messages, list):
        return ()
    return [
        (orjson.dumps(message), message.get("role") if isinstance(message, dict) else None)
        for message in messages[:_MAX_ELEMENTS]
    ]


def _tools_of(fields: Mapping[str, object]) -> bytes:
    tools = fields.get("tools")
    if not isinstance(tools, bytes):
        return orjson.dumps(tools)
    parsed = elements(tools, _ROLE, _MAX_ELEMENTS)
    if parsed is None:
        return orjson.dumps(orjson.loads(tools))
    return b"[" + b",".join([written for written, _ in parsed]) + b"]"


def _chain(seed: bytes, messages: Sequence[_Message]) -> Iterator[tuple[int, bool, Prefix]]:
    """Yield each prefix with the index of the message that it ends in, and whether it covers all of that message."""
    digest, size, links = blake3(seed).digest(_HASH_BYTES), 0, 0
    for index, (written, _) in enumerate(messages):
        for start in range(0, len(written), BLOCK):
            block = written[start : start + BLOCK]
            digest = blake3(digest + block).digest(_HASH_BYTES)
            size += len(block)
            yield index, start + BLOCK >= len(written), Prefix(digest, size)
            links += 1
            if links >= MAX_LINKS:
                return


def _is_everybodys(message: _Message) -> bool:
    return message[1] in _EVERYBODYS
