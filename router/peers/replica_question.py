"""Question to another node: how busy its replica is, and how much of a conversation it has read.

A few nodes are asked before a long request is sent to one of them. Only hashes of the conversation are sent, so a node learns
none of its text. The answer is untrusted until it is parsed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from registry.bounded import put_newest
from registry.clock import Clock
from registry.records import PeerId, Service
from router.errors import BadRequest, WorkerError
from router.openai.prefixes import MAX_LINKS, Prefix, Prefixes
from router.peers.links import MAX_PEERS, Links
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.state import remote_load, service_time
from router.state.prefix_index import Read, ReplicaAnswer

PATH = "/api/v1/replica"

WITHIN = 0.25
"""Seconds to wait for an answer: a longer wait soon costs more than the answer can save."""

PAUSE = 30.0
"""Seconds for which a node that did not answer in time is not asked again, since every request would wait for it."""

MAX_ANSWER_BYTES = 2_048

_DIGEST_BYTES = 16
_OLDEST = 1e6


@dataclass(frozen=True, slots=True)
class Question:
    """A question: which replica, which kind of request, and the hashes of the conversation's beginnings in order."""

    kind: Kind
    project: str
    model: str
    cid: str
    prefixes: Prefixes


def parse_question(fields: Mapping[str, object]) -> Question:
    """Read a question; raise `BadRequest` if it is malformed. Its sizes are positions, as the answering node needs no others."""
    match fields:
        case {
            "kind": str(kind),
            "project": str(project),
            "model": str(model),
            "cid": str(cid),
            "prefixes": list(digests),
        } if kind in {*Kind} and len(digests) <= MAX_LINKS:
            chain = tuple(Prefix(_digest(d), index) for index, d in enumerate(digests, 1))
            return Question(Kind(kind), project, model, cid, Prefixes(chain))
    raise BadRequest("a question names kind, project, model and cid, and at most 256 prefixes")


def _digest(value: object) -> bytes:
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise BadRequest("a prefix is a hash of 16 bytes, in hexadecimal digits")
    return digest


def encode_answer(answer: ReplicaAnswer) -> dict[str, object]:
    """Return an answer as it is sent: how many of the prefixes were read, and how many seconds ago."""
    payload: dict[str, object] = {"prefixes": answer.read.size if answer.read else 0}
    if answer.read:
        payload["age"] = round(answer.read.age, 3)
    if answer.load:
        payload["load"] = remote_load.format_load(answer.load)
    if answer.time:
        payload["service_time"] = service_time.format_service_time(answer.time)
    return payload


def parse_answer(body: bytes, prefixes: Prefixes) -> ReplicaAnswer | None:
    """Read an answer about a conversation; return `None` if it is malformed."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict):
        return None
    read: Read | None = None
    match answer:
        case {"prefixes": int(count), "age": int() | float() as age} if _is_read(
            count, age, prefixes
        ):
            read = Read(prefixes.chain[count - 1].size, float(age))
    load, time = answer.get("load"), answer.get("service_time")
    return ReplicaAnswer(
        read,
        remote_load.parse_load(load) if isinstance(load, str) else None,
        service_time.parse_service_time(time) if isinstance(time, str) else None,
    )


def _is_read(count: int, age: float, prefixes: Prefixes) -> bool:
    return 0 < count <= len(prefixes.chain) and math.isfinite(age) and 0 <= age <= _OLDEST


class ReplicaQuestions:
    """Client that asks other nodes about their replicas."""

    def __init__(self, links: Links, clock: Clock) -> None:
        self._links = links
        self._now = clock
        self._paused_until: dict[PeerId, float] = {}

    async def ask(self, request: Request, candidate: Candidate) -> ReplicaAnswer | None:
        """Return what a candidate's node says, `None` if it does not answer in time, or failed to lately."""
        node, service = candidate.key
        if self._paused_until.get(node, 0.0) > self._now():
            return None
        answer = await self._ask(request, node, service)
        self._paused_until.pop(node, None)
        if answer is None:
            put_newest(self._paused_until, node, self._now() + PAUSE, limit=MAX_PEERS)
        return answer

    async def _ask(self, request: Request, node: PeerId, service: Service) -> ReplicaAnswer | None:
        question = {
            "kind": request.kind,
            "project": service.project,
            "model": service.model,
            "cid": service.cid,
            "prefixes": [prefix.digest.hex() for prefix in request.prefixes.chain],
        }
        try:
            status, answer = await self._links.ask(
                node,
                PATH,
                request.id,
                within=WITHIN,
                at_most=MAX_ANSWER_BYTES,
                body=orjson.dumps(question),
            )
        except (OSError, WorkerError):
            return None
        return parse_answer(answer, request.prefixes) if status == 200 else None
