"""Cost of a request through modelvine, compared with other gateways: medians of interleaved rounds in one run.

    python -m bench.peers --venvs FOLDER [--rounds 3] [--seconds 4] [--write docs]

The same measurements as `python -m bench`, of the same targets and of every peer that is installed: nginx on the PATH, the
others as FOLDER/NAME/bin/…, each in an environment of its own (`pip install vllm-router`, `sglang-router`, `smg`,
`litellm[proxy]`). Each peer runs one worker process on CPU 1 in front of the same mock worker. Missing peers are reported
and skipped.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import charts
from bench.compare import (
    HERE,
    WORKER_PORT,
    Figures,
    Load,
    Target,
    call,
    heading,
    measure,
    replace_between_marks,
    targets,
    until,
    write_bodies,
)

OURS = frozenset({"local", "hop"})
WORKER = f"127.0.0.1:{WORKER_PORT}"
_FIRST_PORT = 28_110

NGINX = """
{user}worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err warn;
worker_rlimit_nofile 20000;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000; keepalive_timeout 300s; tcp_nodelay on;
  client_max_body_size 64m; client_body_buffer_size 1m;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream up {{ server {worker}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""

LITELLM = """
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_base: "http://{worker}/v1", api_key: sk-none}}
litellm_settings: {{telemetry: false, set_verbose: false, request_timeout: 600, num_retries: 0, callbacks: []}}
router_settings: {{routing_strategy: simple-shuffle}}
general_settings: {{disable_spend_logs: true, disable_error_logs: true}}
"""

_RUST = (
    "--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "http://{worker}", "--policy", "round_robin",
    "--log-level", "error", "--prometheus-host", "127.0.0.1", "--prometheus-port", "{metrics}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peer:
    """Gateway to compare with: its program, its arguments, and the configuration that it reads."""

    name: str
    program: str
    arguments: tuple[str, ...]
    configuration: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


PEERS = (
    Peer("nginx", "nginx", ("-c", "{configuration}"), NGINX),
    Peer("vLLM router", "vllm-router/bin/vllm-router", _RUST),
    Peer("SGLang router", "sglang-router/bin/python", ("-m", "sglang_router.launch_router", *_RUST)),
    Peer("SGLang gateway", "smg/bin/smg", ("launch", *_RUST)),
    Peer(
        "LiteLLM",
        "litellm/bin/litellm",
        ("--config", "{configuration}", "--host", "127.0.0.1", "--port", "{port}", "--num_workers", "1"),
        LITELLM,
        {
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "NO_DOCS": "True",
            "DISABLE_ADMIN_UI": "True",
        },
    ),
)  # fmt: skip


def found(peer: Peer, venvs: Path | None) -> str | None:
    """Return the program of a peer, `None` if it is not installed."""
    if "/" not in peer.program:
        return shutil.which(peer.program)
    program = venvs / peer.program if venvs else None
    return str(program.absolute()) if program and program.exists() else None


@contextmanager
def running(peer: Peer, program: str, port: int, folder: Path) -> Iterator[Target]:
    """Run a peer on CPU 1, and end it afterwards with all processes that it starts; raise `TimeoutError`."""
    own_folder = folder / peer.name.replace(" ", "-")
    own_folder.mkdir()
    # Workers of nginx under another user could not write large bodies into root's folder.
    user = "user root; " if os.geteuid() == 0 else ""
    values = {
        "port": port,
        "metrics": port + 500,
        "worker": WORKER,
        "folder": own_folder,
        "user": user,
    }
    configuration = own_folder / (
        "configuration.yaml" if peer.name == "LiteLLM" else "configuration"
    )
    configuration.write_text(peer.configuration.format(**values))
    arguments = [a.format(configuration=configuration, **values) for a in peer.arguments]
    with (own_folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["taskset", "-c", "1", program, *arguments],
            cwd=own_folder,
            env={**os.environ, **peer.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    question = {"model": "mock", "messages": [{"role": "user", "content": "[[chunks=1]]"}]}
    try:
        until(lambda: "choices" in call(f"{url}/v1/chat/completions", question), seconds=90)
        yield Target(peer.name, url, session_of(process.pid))
    finally:
        for pid in session_of(process.pid):
            os.kill(pid, 15)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            for pid in session_of(process.pid):
                os.kill(pid, 9)


def session_of(leader: int) -> tuple[int, ...]:
    """Return the processes of the session of a process that was started here."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return tuple(members)


COLUMNS = (
    ("CPU-s per 1,000 requests, 32 connections", "c32.cpu_s_per_1000", "{:.3f}"),
    ("requests/s, 1 connection", "c1.requests_per_s", "{:,.0f}"),
    ("requests/s, 32", "c32.requests_per_s", "{:,.0f}"),
    ("latency p50 at 50/s, ms", "paced.p50_ms", "{:.2f}"),
    ("first token at 500 streams, p50 ms", "s500.ttft_p50_ms", "{:.2f}"),
    ("p99 ms", "s500.ttft_p99_ms", "{:.1f}"),
    ("CPU-s per 1,000 chunks, in bursts", "burst.cpu_s_per_1000_chunks", "{:.4f}"),
    ("paced", "s500.cpu_s_per_1000_chunks", "{:.4f}"),
    ("CPU-ms of a request of 100 KB", "100KB.cpu_ms", "{:.2f}"),
    ("of 5 MB", "5MB.cpu_ms", "{:.1f}"),
    ("memory, MB", "memory_mb", "{:.0f}"),
)


def table(medians: Mapping[str, Figures]) -> str:
    """Return a table with one row for each target, the cheapest request first."""
    key = COLUMNS[0][1]
    columns = [c for c in COLUMNS if all(c[1] in figures for figures in medians.values())]
    lines = ["| | " + " | ".join(label for label, _, _ in columns) + " | ÷ bare | failed |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for name in sorted(medians, key=lambda name: medians[name][key]):
        figures = medians[name]
        title = f"**modelvine, {name}**" if name in OURS else name
        cells = [form.format(figures[column]) for _, column, form in columns]
        ratio = figures[key] / medians["bare"][key]
        lines.append(
            f"| {title} | " + " | ".join(cells) + f" | {ratio:.2f} | {figures['failed']:.0f} |"
        )
    return "\n".join(lines)


def medians_of(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure, and the sum of the failures."""
    medians = {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
    failed = sum(v for figures in rounds for key, v in figures.items() if key.endswith(".errors"))
    return medians | {"failed": failed}


def main() -> int:
    """Run the comparison, print its table, and draw its chart."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--venvs", type=Path, help="folder of the peers' environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--only",
        default="c1,c32,paced,s500,burst,100KB,5MB",
        help="which measurements; c32 must be one",
    )
    parser.add_argument(
        "--write",
        type=charts.folder,
        help="folder with performance.md, for the table and peers.svg",
    )
    arguments = parser.parse_args()
    # On SIGTERM, stop the started processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    subprocess.run(["make", "-s", "-C", str(HERE / "csrc")], check=True)
    rounds: dict[str, list[Figures]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modelvine-peers-") as name, ExitStack() as stack:
        folder = Path(name)
        load = Load(write_bodies(folder), arguments.seconds)
        measured = stack.enter_context(targets(folder))
        for number, peer in enumerate(PEERS):
            program = found(peer, arguments.venvs)
            if program is None:
                print(f"{peer.name} is not installed", file=sys.stderr)
                continue
            try:
                measured.append(
                    stack.enter_context(running(peer, program, _FIRST_PORT + number, folder))
                )
            except TimeoutError:
                print(f"{peer.name} did not get ready", file=sys.stderr)
        for number in range(arguments.rounds):
            for target in measured if number % 2 == 0 else measured[::-1]:
                print(f"round {number + 1}/{arguments.rounds} {target.name}", file=sys.stderr)
                figures = measure(load, target, arguments.only.split(","))
                rounds.setdefault(target.name, []).append(figures)
    medians = {name: medians_of(results) for name, results in rounds.items() if name != "direct"}
    chart = "![CPU of one request through each gateway](peers.svg)"
    text = f"{heading(arguments, 'bench.peers')}\n{table(medians)}\n\n{chart}"
    print(text, f"\n{time.monotonic() - began:.0f} s", sep="")
    if arguments.write:
        replace_between_marks(arguments.write / "performance.md", text, "peers")
        cost = {f"modelvine, {n}" if n in OURS else n: m["c32.cpu_s_per_1000"] * 1000 for n, m in medians.items()}  # fmt: skip
        ours = {f"modelvine, {n}" for n in OURS}
        title = "CPU of one request through each gateway"
        charts.draw_bars(
            arguments.write / "peers.svg", title, cost, ours=ours, unit="microseconds of CPU"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
