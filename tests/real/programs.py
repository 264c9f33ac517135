"""Processes of other projects' programs: where each listens, which server it asks, and when it is ready."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from node.demo.play import STOP_WITHIN
from tests.clients.tried import ROOT
from tests.real.tried import Program

START_WITHIN = 180.0
"""Seconds; some programs load half of PyPI before they listen, on a machine that may be busy."""
KEY = "sk-tried-by-the-tests-0123456789"
"""The key that LiteLLM demands of its callers."""
SCRIPTS = Path(__file__).parent / "scripts"
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MASTER_KEY": KEY,
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program is to listen and to keep its files, and the OpenAI server that a gateway is to ask for some models."""

    port: int
    folder: Path
    upstream: str = ""
    models: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The program's address, without a path."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Launch:
    """The words that start a program, the path that answers once it is ready, and what else its environment has."""

    words: Sequence[str]
    ready: str
    env: Mapping[str, str] = field(default_factory=dict)


def interpreter(environment: str) -> Path:
    """Return the Python of an environment; skip the test where the environment is not installed."""
    python = ROOT / ".venv" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(
            f"{environment} is not installed; `make real` installs it, or says why it cannot"
        )
    return python


@cache
def chat_weights(folder: Path) -> str:
    """Make a model that chats; return its folder."""
    path = folder / "tiny-chat"
    run("real-texts", "chat_weights.py", str(path), home=folder)
    return str(path)


@cache
def _rank_weights(folder: Path) -> tuple[str, str, str]:
    """Make a model that ranks and one that classifies; return the folders of one for embeddings and of these two."""
    ranker, classifier = folder / "tiny-ranker", folder / "tiny-classifier"
    # Three classes, because a configuration does not state two classes without names.
    for target, classes in ((ranker, "1"), (classifier, "3")):
        vectors = run("real-vectors", "rank_weights.py", str(target), classes, home=folder)
    return vectors, str(ranker), str(classifier)


def run(environment: str, script: str, *arguments: str, home: Path) -> str:
    """Run a script of ours in an environment to its end; return what it said."""
    arguments = (str(interpreter(environment)), str(SCRIPTS / script), *arguments)
    env = {**_ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": str(home)}
    ran = subprocess.run(
        arguments, env=env, capture_output=True, text=True, timeout=START_WITHIN, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def _transformers(place: Place) -> Launch:
    model = chat_weights(place.folder.parent)
    options = ("--host", "127.0.0.1", "--port", str(place.port), "--device", "cpu")
    return Launch(("transformers", "serve", *options, model), "/health")


def _mlx(place: Place) -> Launch:
    model = chat_weights(place.folder.parent)
    options = ("--host", "127.0.0.1", "--port", str(place.port))
    return Launch(("mlx_lm.server", "--model", model, *options), "/health")


def _infinity(place: Place) -> Launch:
    folders = _rank_weights(place.folder.parent)
    models = [argument for folder in folders for argument in ("--model-id", folder)]
    served = ("minilm", "ranker", "classifier")
    names = [argument for name in served for argument in ("--served-model-name", name)]
    lean = ("--no-bettertransformer", "--no-compile", "--no-model-warmup", "--dtype", "float32")
    options = ("--host", "127.0.0.1", "--port", str(place.port), "--device", "cpu")
    engine = ("--engine", "torch", *lean)
    return Launch(("infinity_emb", "v2", *models, *names, *engine, *options), "/health")


def _vllm(place: Place) -> Launch:
    _, ranker, _ = _rank_weights(place.folder.parent)
    options = ("--host", "127.0.0.1", "--port", str(place.port))
    lean = ("--runner", "pooling", "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "4")
    model = ("--model", ranker, "--served-model-name", "ranker", *lean)
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    # Its command `vllm` does not find the version of this package.
    command = ("python", "-m", "vllm.entrypoints.openai.api_server", *model, *options)
    return Launch(command, "/health", env)


def _litellm(place: Place) -> Launch:
    rows = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{name}",
                "api_base": f"{place.upstream}/v1",
                "api_key": "unused",
            },
        }
        for name in place.models
    ]
    config = place.folder / "litellm.yaml"
    # JSON is valid YAML.
    config.write_text(json.dumps({"model_list": rows}))
    options = ("--host", "127.0.0.1", "--port", str(place.port))
    return Launch(("litellm", "--config", str(config), *options), "/health/liveliness")


def _sglang(place: Place) -> Launch:
    options = (
        "--host",
        "127.0.0.1",
        "--port",
        str(place.port),
        "--prometheus-port",
        str(free_port()),
    )
    asks = ("--worker-urls", place.upstream, "--policy", "round_robin")
    return Launch(("python", "-m", "sglang_router.launch_router", *options, *asks), "/readiness")


def _tokens() -> Path:
    """Return where LiteLLM carries the token tables by which Llama Stack cuts files, which it would otherwise download."""
    libraries = interpreter("real-gateways").parent.parent / "lib"
    [folder] = libraries.glob("python*/site-packages/litellm/litellm_core_utils/tokenizers")
    return folder


def _llama_stack(place: Place) -> Launch:
    files = {name: str(place.folder / f"{name}.db") for name in ("kv", "sql")}
    upstream = {"base_url": f"{place.upstream}/v1", "api_token": "unused"}
    metadata = {"backend": "sql_default", "table_name": "files"}
    files_config = {"storage_dir": str(place.folder / "files"), "metadata_store": metadata}
    providers: Mapping[str, tuple[str, Mapping[str, object]]] = {
        "inference": ("remote::vllm", upstream),
        "files": ("inline::localfs", files_config),
        "file_processors": ("inline::pypdf", {}),
        "vector_io": ("inline::faiss", {"persistence": _stored("vectors")}),
        "batches": ("inline::reference", {"kvstore": _stored("batches")}),
    }
    # Llama Stack takes all other models for models that chat.
    reader = {
        "model_id": place.models[1],
        "model_type": "embedding",
        "provider_id": "upstream",
        "metadata": {"embedding_dimension": _dimensions(place)},
    }
    config = {
        "version": 2,
        "distro_name": "tried",
        "apis": [*providers],
        "providers": {
            api: [{"provider_id": "upstream", "provider_type": kind, "config": settings}]
            for api, (kind, settings) in providers.items()
        },
        "storage": {
            "backends": {
                "kv_default": {"type": "kv_sqlite", "db_path": files["kv"]},
                "sql_default": {"type": "sql_sqlite", "db_path": files["sql"]},
            },
            "stores": {
                "metadata": _stored("registry"),
                "inference": {"table_name": "inference", "backend": "sql_default"},
                "conversations": {"table_name": "conversations", "backend": "sql_default"},
                "prompts": _stored("prompts"),
            },
        },
        "registered_resources": {"models": [reader]},
        "server": {"port": place.port, "host": "127.0.0.1"},
    }
    written = place.folder / "stack.yaml"
    written.write_text(json.dumps(config))
    command = ("llama", "stack", "run", str(written))
    # Writing one exception to its coloured log takes Llama Stack 20 seconds, in which it answers nothing.
    env = {"TIKTOKEN_CACHE_DIR": str(_tokens()), "LLAMA_STACK_LOG_FORMAT": "json"}
    return Launch((*command, "--port", str(place.port)), "/v1/health", env)


def _dimensions(place: Place) -> int:
    """Ask the upstream how long the vectors of its second model are."""
    body = json.dumps({"model": place.models[1], "input": "a vine"}).encode()
    request = urllib.request.Request(
        f"{place.upstream}/v1/embeddings", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=START_WITHIN) as answer:
        return len(json.load(answer)["data"][0]["embedding"])


def _stored(namespace: str) -> Mapping[str, str]:
    return {"namespace": namespace, "backend": "kv_default"}


_LAUNCHES: Mapping[str, Callable[[Place], Launch]] = {
    "infinity-emb": _infinity,
    "litellm": _litellm,
    "llama-stack": _llama_stack,
    "mlx-lm": _mlx,
    "sglang-router": _sglang,
    "transformers": _transformers,
    "vllm-cpu": _vllm,
}


class Running:
    """A program in a process group of its own, which ends with the block."""

    def __init__(self, program: Program, place: Place) -> None:
        self.program = program
        self.place = place
        self._bin = interpreter(program.environment).parent
        self._log = place.folder / f"{program.package}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Running":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """All output of the program, over all its runs."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start the program and wait until it answers."""
        launch = _LAUNCHES[self.program.package](self.place)
        home = self.place.folder
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(self._bin / launch.words[0]), *launch.words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=home,
                env={**_ENVIRONMENT, **launch.env, "PATH": os.environ["PATH"], "HOME": str(home)},
                start_new_session=True,
            )
        deadline = time.monotonic() + START_WITHIN
        while not _answers(self.place.url + launch.ready):
            assert self._process.poll() is None, f"ended:\n{self.log[-800:]}"
            assert time.monotonic() < deadline, f"not ready:\n{self.log[-800:]}"
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the program as a power cut would, with all of its children."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the program to end, and kill it if it does not."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_WITHIN)


def free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False
