"""Equal protocols of a caller and a worker: then nothing need be translated.

A face gives its caller's own words along, beside OpenAI's body: who speaks them passes them on as they are, everybody else
reads that body. To another node both go, one after the other, if its record says that it takes them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from registry.records import Ability, Service
from router.errors import BadRequest
from router.openai.body import object_of
from router.peers.headers import VERBATIM

TGI, LLAMA_STACK = "tgi_http", "llama_stack_http"
LOCALAI, REMOTELLM = "localai_grpc", "remotellm_grpc"

SPOKEN: Mapping[str, Ability] = {
    TGI: Ability.TGI,
    LLAMA_STACK: Ability.LLAMA_STACK,
    LOCALAI: Ability.LOCALAI,
    REMOTELLM: Ability.REMOTELLM,
}
"""The protocols whose words are passed on, by dialect, and the bit by which a record says so."""

HEADERS = (
    "x-compute-characters", "x-compute-time", "x-compute-type", "x-generated-tokens", "x-inference-time", "x-prompt-tokens",
    "x-queue-time", "x-time-per-token", "x-total-time", "x-validation-time",
)  # fmt: skip
"""Headers of an answer that are such words too: TGI's."""

_JSON = frozenset({TGI, LLAMA_STACK})
_SAID = re.compile(
    r"([a-z_]{1,32}) ([A-Za-z_/]{1,64}) ([0-9]{1,12})(?: ([A-Za-z_]{1,64}))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A request in its caller's own words: `protocol` is the dialect, `call` the path or the RPC, `body` its bytes.

    `needs` names a parameter for which there is no word in OpenAI's form: only who speaks the protocol can answer then.
    """

    protocol: str
    call: str
    body: bytes
    needs: str = ""


def bit(dialect: str) -> int:
    """Return the bit of a record for workers of a dialect, 0 for those that are asked in OpenAI's words."""
    return int(SPOKEN.get(dialect, 0))


def takes(said: Verbatim, service: Service) -> bool:
    """Say whether the node of a replica passes these words on to it."""
    return bool(service.abilities & bit(said.protocol))


def written(said: Verbatim) -> str:
    """Say in a header what follows OpenAI's body."""
    return f"{said.protocol} {said.call} {len(said.body)} {said.needs}".rstrip()


def split(header: str, body: bytes) -> tuple[bytes, Verbatim | None]:
    """Take a body apart as its header says, which another node wrote; raise `BadRequest`.

    What is of no protocol that is known here is left out: OpenAI's body says the same.
    """
    said = _SAID.fullmatch(header)
    size = int(said[3]) if said else 0
    if said is None or not 0 < size < len(body):
        raise BadRequest(f"{VERBATIM} does not give the length of OpenAI's body")
    protocol, call, _, needs = said.groups()
    if protocol not in SPOKEN and needs:
        raise BadRequest(f"{protocol[:32]} is not known here", param=needs)
    words = Verbatim(protocol, call, body[-size:], needs or "")
    if protocol in _JSON:
        object_of(words.body)
    return body[:-size], words if protocol in SPOKEN else None
