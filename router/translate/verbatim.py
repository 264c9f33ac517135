"""Requests in their caller's own protocol, which need no translation for a worker that speaks the same one.

A face passes its caller's own message along with OpenAI's body. A dialect of the same protocol forwards the message unchanged;
every other one reads that body. Another node gets both, one after the other, if its record says that it takes them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from registry.records import Ability, Service
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.peers.headers import VERBATIM

TGI, LLAMA_STACK = "tgi_http", "llama_stack_http"
LOCALAI, REMOTELLM = "localai_grpc", "remotellm_grpc"

SPOKEN: Mapping[str, Ability] = {
    TGI: Ability.TGI,
    LLAMA_STACK: Ability.LLAMA_STACK,
    LOCALAI: Ability.LOCALAI,
    REMOTELLM: Ability.REMOTELLM,
}
"""The protocols whose messages are passed on, by dialect, and the bit that a record has for each."""

HEADERS = (
    "x-compute-characters", "x-compute-time", "x-compute-type", "x-generated-tokens", "x-inference-time", "x-prompt-tokens",
    "x-queue-time", "x-time-per-token", "x-total-time", "x-validation-time",
)  # fmt: skip
"""Headers of an answer that are passed on with it: TGI's."""

_JSON = frozenset({TGI, LLAMA_STACK})
_SAID = re.compile(
    r"([a-z_]{1,32}) ([A-Za-z_/]{1,64}) ([0-9]{1,12})(?: ([A-Za-z_]{1,64}))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A request in its caller's own protocol: `protocol` is the dialect, `call` the path or the RPC, `body` its bytes.

    `needs` names a parameter that OpenAI's form lacks: only workers of this protocol can answer then.
    """

    protocol: str
    call: str
    body: bytes
    needs: str = ""


def protocol_bit(dialect: str) -> int:
    """Return the bit of a record for workers of a dialect, 0 for dialects whose callers' messages are not passed on."""
    return int(SPOKEN.get(dialect, 0))


def accepts(original: Verbatim, service: Service) -> bool:
    """Return whether the node of a replica passes this message on to it."""
    return bool(service.abilities & protocol_bit(original.protocol))


def format_header(original: Verbatim) -> str:
    """Return the header that describes the message behind OpenAI's body."""
    return f"{original.protocol} {original.call} {len(original.body)} {original.needs}".rstrip()


def split_body(header: str, body: bytes) -> tuple[bytes, Verbatim | None]:
    """Split a body from another node into OpenAI's body and the message that the header describes; raise `BadRequest`.

    A message of an unknown protocol is left out: OpenAI's body says the same.
    """
    match = _SAID.fullmatch(header)
    size = int(match[3]) if match else 0
    if match is None or not 0 < size < len(body):
        raise BadRequest(f"{VERBATIM} does not give the length of OpenAI's body")
    protocol, call, _, needs = match.groups()
    if protocol not in SPOKEN and needs:
        raise BadRequest(f"{protocol[:32]} is not known here", param=needs)
    original = Verbatim(protocol, call, body[-size:], needs or "")
    if protocol in _JSON:
        parse_json_object(original.body)
    return body[:-size], original if protocol in SPOKEN else None
