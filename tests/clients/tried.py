"""Table of the clients that are tried, their versions, and what each does with a node. The documentation's is made of it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
NPM = Path(__file__).parent / "npm"

KINDS = (
    "models",
    "chat",
    "stream",
    "completion",
    "tools",
    "responses",
    "embeddings",
    "tokens",
    "logprobs",
    "speech",
)
"""What a client may ask for; every client also asks for a model that no node has, and for one whose worker dies."""

_OPENAI = tuple(kind for kind in KINDS if kind not in ("tokens", "logprobs"))


@dataclass(frozen=True, slots=True)
class Client:
    """A published client. `script` asks for what is `tried`.

    For a model that no node has it raises `unknown`, for a stream that breaks off it raises `broken`.
    """

    package: str
    script: str
    tried: tuple[str, ...]
    unknown: str
    broken: str
    environment: str = "clients"
    speaks: str = "OpenAI"

    @property
    def version(self) -> str:
        """The version in the lock file of its environment."""
        if self.environment == "npm":
            lock = json.loads((NPM / "package-lock.json").read_text())
            return str(lock["packages"][f"node_modules/{self.package}"]["version"])
        lock = (ROOT / f"requirements-{self.environment}.lock").read_text()
        [version] = set(re.findall(rf"^{re.escape(self.package)}==([^ ;\\]+)", lock, re.MULTILINE))
        return version

    @property
    def language(self) -> str:
        """The language that its users write."""
        return "JavaScript" if self.environment == "npm" else "Python"

    def __str__(self) -> str:
        name = Path(self.script).stem.removeprefix("with_")
        return f"{name}-{self.version}" + ("-npm" if self.environment == "npm" else "")


CLIENTS = (
    Client("openai", "with_openai.py", _OPENAI, "NotFoundError", "APIError", "clients-new"),
    Client("openai", "with_openai.py", _OPENAI, "NotFoundError", "APIError"),
    Client("openai", "with_openai.mjs", _OPENAI, "NotFoundError", "APIError", "npm"),
    Client(
        "anthropic",
        "with_anthropic.py",
        ("models", "chat", "stream", "tools", "tokens"),
        "NotFoundError",
        "APIStatusError",
        speaks="Anthropic",
    ),
    Client(
        "text-generation",
        "with_text_generation.py",
        ("chat", "stream", "completion", "logprobs"),
        "ValidationError",
        "IncompleteGenerationError",
        speaks="TGI",
    ),
    Client(
        "huggingface-hub",
        "with_huggingface_hub_tgi.py",
        ("stream", "completion", "logprobs"),
        "ValidationError",
        "IncompleteGenerationError",
        "clients-new",
        speaks="TGI",
    ),
    Client(
        "huggingface-hub",
        "with_huggingface_hub_tgi.py",
        ("stream", "completion", "logprobs"),
        "ValidationError",
        "IncompleteGenerationError",
        speaks="TGI",
    ),
    Client(
        "huggingface-hub",
        "with_huggingface_hub.py",
        ("chat", "stream", "tools"),
        "HfHubHTTPError",
        "UnknownError",
        "clients-new",
    ),
    Client(
        "huggingface-hub",
        "with_huggingface_hub.py",
        ("chat", "stream", "tools"),
        "HfHubHTTPError",
        "UnknownError",
    ),
    Client(
        "llama-stack-client",
        "with_llama_stack.py",
        ("models", "chat", "stream", "tools"),
        "NotFoundError",
        "RemoteProtocolError",
    ),
    Client(
        "langchain-openai",
        "with_langchain.py",
        ("chat", "stream", "tools", "responses", "embeddings"),
        "OpenAIModelNotFoundError",
        "APIError",
    ),
    Client(
        "litellm",
        "with_litellm.py",
        ("chat", "stream", "tools", "embeddings", "speech"),
        "NotFoundError",
        "MidStreamFallbackError",
    ),
    Client("llm", "with_llm.py", ("chat", "stream"), "exit code 1", "exit code 1"),
    Client(
        "@ai-sdk/openai-compatible",
        "with_ai_sdk.mjs",
        ("chat", "stream", "tools", "embeddings"),
        "AI_APICallError",
        "Object",
        "npm",
    ),
    Client(
        "@ai-sdk/openai",
        "with_ai_sdk_responses.mjs",
        ("responses",),
        "AI_APICallError",
        "Object",
        "npm",
    ),
    Client(
        "@ai-sdk/anthropic",
        "with_ai_sdk_anthropic.mjs",
        ("chat", "stream", "tools"),
        "AI_APICallError",
        "Object",
        "npm",
        speaks="Anthropic",
    ),
    Client(
        "@huggingface/inference",
        "with_huggingface_inference.mjs",
        ("chat", "stream", "completion"),
        "ProviderApiError",
        "ProviderApiError",
        "npm",
        speaks="TGI",
    ),
)
