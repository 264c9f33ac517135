"""Calls of services other than models, such as batches and vector stores: their methods and paths in two protocols.

A node sends a service no call that is not in this table, whatever its caller asks for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, unquote

from router.errors import BadRequest
from router.requests import Kind, Target
from router.translate.verbatim import LLAMA_STACK

OPENAI = "openai_http"

MAX_PATH_CHARACTERS = 4_096
"""The longest path with its query."""

_SENT = re.compile(r"[!-~]+")
_FILES = (Kind.BATCH, Kind.FINE_TUNING, Kind.VECTORS)
_PURPOSES: Mapping[str, Kind] = {"batch": Kind.BATCH, "fine-tune": Kind.FINE_TUNING}


@dataclass(frozen=True)
class ServiceCall:
    """One path of a protocol; each `*` in it is an id. An empty method means that the specification has none: GET and POST.

    `kinds` are the kinds of service that the call may be for: several if only an id, or the purpose of a file, decides.
    `named_by` is the field of the body that may name the service. `begins` says that ids in the answer can be requested later.
    """

    protocol: str
    method: str
    path: str
    kinds: tuple[Kind, ...]
    named_by: str = ""
    begins: bool = True

    @property
    def methods(self) -> tuple[str, ...]:
        """The HTTP methods of the call."""
        return (self.method,) if self.method else ("GET", "POST")

    @property
    def at_home(self) -> bool:
        """Whether the call continues what only one provider has, even if providers share the rest: parts of an upload."""
        return self.path.startswith("/v1/uploads/")

    @cached_property
    def shape(self) -> re.Pattern[str]:
        """The pattern of the call's path; each group is an id."""
        return re.compile(re.escape(self.path).replace(r"\*", "([^/?]{1,1024})"))


def _llama_stack(
    kind: Kind, *paths: str, named_by: str = "", begins: bool = True
) -> list[ServiceCall]:
    split = [path.rpartition(" ") for path in paths]
    return [ServiceCall(LLAMA_STACK, m, path, (kind,), named_by, begins) for m, _, path in split]


def _openai(kinds: tuple[Kind, ...], *paths: str) -> list[ServiceCall]:
    split = [path.rpartition(" ") for path in paths]
    return [
        ServiceCall(OPENAI, m, f"/v1/{path}", kinds) for ms, _, path in split for m in ms.split("|")
    ]


def _jobs(prefix: str) -> tuple[str, str, str]:
    return f"POST {prefix}/jobs/submit", f"GET {prefix}/jobs/status", f"POST {prefix}/jobs/cancel"


CALLS: tuple[ServiceCall, ...] = (
    *_llama_stack(Kind.BATCH, *_jobs("/batch_inference")),
    *_llama_stack(
        Kind.FINE_TUNING, *_jobs("/fine_tuning"), "GET /fine_tuning/jobs/tail", "/quantize"
    ),
    *_llama_stack(Kind.REWARD, "POST /reward_scoring", named_by="reward", begins=False),
    *_llama_stack(Kind.REWARD, *_jobs("/batch_reward_scoring"), named_by="reward_model"),
    *_llama_stack(Kind.SYNTHETIC, *_jobs("/synthetic_data_gen")),
    *_llama_stack(
        Kind.VECTORS,
        "/vector_store",
        "/vector_store/create",
        "/vector_store/drop",
        "/vector_store/update",
        *(f"/vector_store/{job}/jobs/{what}" for job in ("insert", "delete") for what in ("submit", "status", "cancel")),
    ),
    *_llama_stack(Kind.AGENTS, "POST /agents/execute", begins=False),
    *_llama_stack(Kind.MEMORY, "GET /agents/execute", begins=False),
    *_openai(_FILES, "GET|POST files", "GET|DELETE files/*", "GET files/*/content"),
    *_openai(_FILES, "POST uploads", *(f"POST uploads/*/{what}" for what in ("parts", "complete", "cancel"))),
    *_openai((Kind.BATCH,), "GET|POST batches", "GET batches/*", "POST batches/*/cancel"),
    *_openai(
        (Kind.FINE_TUNING,),
        "GET|POST fine_tuning/jobs",
        "GET fine_tuning/jobs/*",
        *(f"POST fine_tuning/jobs/*/{what}" for what in ("cancel", "pause", "resume")),
        *(f"GET fine_tuning/jobs/*/{what}" for what in ("events", "checkpoints")),
    ),
    *_openai(
        (Kind.VECTORS,),
        "GET|POST vector_stores",
        "GET|POST|DELETE vector_stores/*",
        "POST vector_stores/*/search",
        "GET|POST vector_stores/*/files",
        "GET|POST|DELETE vector_stores/*/files/*",
        "GET vector_stores/*/files/*/content",
        "POST vector_stores/*/file_batches",
        "GET vector_stores/*/file_batches/*",
        "POST vector_stores/*/file_batches/*/cancel",
        "GET vector_stores/*/file_batches/*/files",
    ),
)  # fmt: skip
"""Every call of a service, in both protocols."""


DESCRIPTION = ("GET", "/openapi.json")

PROBES: Mapping[str, Mapping[Kind, tuple[str, str]]] = {
    OPENAI: {
        Kind.BATCH: ("GET", "/v1/batches"),
        Kind.FINE_TUNING: ("GET", "/v1/fine_tuning/jobs"),
        Kind.REWARD: DESCRIPTION,
        Kind.VECTORS: ("GET", "/v1/vector_stores"),
    },
    LLAMA_STACK: {
        Kind.BATCH: ("GET", "/batch_inference/jobs/status"),
        Kind.FINE_TUNING: ("GET", "/fine_tuning/jobs/status"),
        Kind.REWARD: ("POST", "/reward_scoring"),
        Kind.SYNTHETIC: ("GET", "/synthetic_data_gen/jobs/status"),
        Kind.VECTORS: ("GET", "/vector_store/insert/jobs/status"),
        Kind.AGENTS: ("POST", "/agents/execute"),
        Kind.MEMORY: ("GET", "/agents/execute"),
    },
}
"""Requests that show whether a server has a service. An OpenAI server is asked for a list, or for its own description, which
names `/score`; a Llama Stack server gets a request with required fields missing."""


def find(method: str, path: str) -> tuple[ServiceCall, list[str]] | None:
    """Return the call and the ids in its path, `None` if there is no such call; `path` is as sent, without its query."""
    for call in CALLS:
        if method in call.methods and (match := call.shape.fullmatch(path)):
            ids = [unquote(text) for text in match.groups()]
            # A server would resolve these to another path.
            return None if {".", ".."}.intersection(ids) else (call, ids)
    return None


def path_of(call: ServiceCall, ids: list[str]) -> str:
    """Return the path of a call with these ids in it."""
    parts = call.path.split("*")
    return "".join(a + quote(b, safe="") for a, b in zip(parts, [*ids, ""], strict=True))


def kinds_of(call: ServiceCall, purpose: object) -> tuple[Kind, ...]:
    """Return the kinds of service that a call may be for, given the purpose of a file if there is one."""
    if len(call.kinds) == 1 or not isinstance(purpose, str):
        return call.kinds
    return (_PURPOSES.get(purpose, Kind.VECTORS),)


def is_place(target: Target) -> bool:
    """Return whether this is the content of a file, which a Llama Stack service may give as the location of its results."""
    found = find(target.method, target.path.partition("?")[0])
    return found is not None and found[0].path == "/v1/files/*/content"


def format_target(target: Target) -> str:
    """Return a target as the value of the header that carries it to another node."""
    return f"{target.method} {target.path}"


def parse_target(header: str, kind: Kind) -> Target:
    """Read that header; raise `BadRequest` if it is no call of a service of this kind."""
    method, _, path = header.partition(" ")
    found = find(method, path.partition("?")[0]) if len(path) <= MAX_PATH_CHARACTERS else None
    if found is None or kind not in found[0].kinds or not _SENT.fullmatch(path):
        raise BadRequest(f"no service of type {kind} has this path")
    return target_of(found[0], method, path)


def target_of(call: ServiceCall, method: str, path: str) -> Target:
    """Return the target of a call; `path` contains its ids and its query."""
    return Target(call.protocol, method, path, call.named_by)
