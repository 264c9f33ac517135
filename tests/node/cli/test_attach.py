"""`modelvine attach`: what it says of what it finds, what it asks of the node, and how it ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node.cli import NOBODY_READS
from tests.node.cli.conftest import Ended, Modelvine
from tests.node.cli.stand_in import Said, StandIn

Start = Callable[..., StandIn]

RECOGNISE = "POST_/api/v1/recognise"
REGISTER = "POST_/api/v0/ai/model/register"
UNREGISTER = "POST_/api/v0/ai/model/unregister"
OK = Said({"code": 0, "message": "ok"})
NO = {"dialect": "tgi_http", "asked": "GET /info", "came": "404", "recognised": False}
YES = {
    "dialect": "openai_http",
    "asked": "GET /v1/models",
    "came": "200, 2 models, Ollama",
    "recognised": True,
}
FOUND = {
    "dialect": "openai_http",
    "api": "http://127.0.0.1:11434",
    "software": "Ollama",
    "models": [{"name": "llama3:latest"}, {"name": "/m/Tiny.gguf", "type": 3}],
}
SEEN = Said({"code": 0, "message": "ok", "tries": [NO, YES], "found": FOUND})
LEARNED = Said({"code": 0, "message": "ok", "learned": [{"software": "Ollama", "context": 4096}]})


def ended_by(number: int, server: StandIn, *, after: int) -> threading.Thread:
    """Send this process a signal once the node has heard so many requests."""

    def wait() -> None:
        while len(server.heard) < after:
            threading.Event().wait(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_all_models_are_registered_and_withdrawn_at_the_end(
    modelvine: Modelvine, node: Start, number: int
) -> None:
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: OK})
    before = signal.getsignal(number)
    thread = ended_by(number, server, after=3)
    ended = modelvine(
        "attach", "127.0.0.1:11434", "--project", "home", "--capacity", "2", "--header", "x-key: secret-1",
    )  # fmt: skip
    thread.join()
    assert ended.code == 0
    assert signal.getsignal(number) is before
    probe, one, two, *left = [request.body for request in server.heard]
    assert probe == {"api": "127.0.0.1:11434", "dialect": "", "headers": {"x-key": "secret-1"}}
    common = {
        "project": "home",
        "cid": "11434",
        "api": "http://127.0.0.1:11434",
        "dialect": "openai_http",
        "capacity": 2,
        "headers": {"x-key": "secret-1"},
    }
    assert one == {**common, "model": "llama3:latest", "type": 0}
    assert two == {**common, "model": "Tiny", "worker_model": "/m/Tiny.gguf", "type": 3}
    assert [body for body in left if "model" in body] == [
        {"project": "home", "model": name, "cid": "11434"} for name in ("llama3:latest", "Tiny")
    ]
    assert ended.out.splitlines() == [
        "looking at 127.0.0.1:11434",
        "  no   tgi: GET /info: 404",
        "  yes  openai: GET /v1/models: 200, 2 models, Ollama",
        "registered home/llama3:latest, replica 11434: Ollama; 4,096 tokens",
        "registered home/Tiny, replica 11434: Ollama; 4,096 tokens",
        "monitoring it; Ctrl-C withdraws the models",
        "withdrew home/llama3:latest",
        "withdrew home/Tiny",
    ]
    assert "secret-1" not in ended.out + ended.err


def watched(
    modelvine: Modelvine, server: StandIn, *, then: Callable[[], None], until: Callable[[], bool]
) -> Ended:
    """Attach, call `then` once both models are registered, and press Ctrl-C once `until` returns true."""

    def play() -> None:
        pause = threading.Event()
        while len(server.heard) < 3:
            pause.wait(0.01)
        then()
        while not until():
            pause.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=play)
    thread.start()
    ended = modelvine("attach", "127.0.0.1:11434", "--project", "p", "--every", "0.05")
    thread.join()
    return ended


@pytest.mark.parametrize("lines", [1, 6])
def test_models_are_withdrawn_when_the_reader_of_the_output_is_gone(
    node: Start, data_dir: Path, lines: int
) -> None:
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: OK})
    arguments = ("127.0.0.1:11434", "--every", "0.05", "--data-dir", str(data_dir))
    command = [sys.executable, "-m", "node", "attach", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        complaints = process.stderr.read()
        assert process.wait(30) == NOBODY_READS
    assert complaints == b""
    assert len(asked(server, "/register")) == len(asked(server, "/unregister"))


def test_a_model_that_was_withdrawn_before_is_reported_as_such(
    modelvine: Modelvine, node: Start
) -> None:
    gone = Said({"code": 0, "message": "not existed"})
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: gone})
    thread = ended_by(signal.SIGINT, server, after=3)
    ended = modelvine("attach", "127.0.0.1:11434", "--project", "p")
    thread.join()
    assert "was withdrawn before: p/Tiny" in ended.out


def asked(server: StandIn, path: str) -> list[str]:
    return [request.body["model"] for request in server.heard if request.path.endswith(path)]


def test_models_are_withdrawn_when_their_worker_is_gone_and_registered_when_it_is_back(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: OK})
    path = RECOGNISE.replace("_", " ", 1)

    def gone() -> None:
        nothing = {**YES, "came": "nothing listens there", "recognised": False}
        server.answers[path] = Said({"code": 0, "tries": [nothing], "found": None})
        while len(asked(server, "/unregister")) < 2:
            threading.Event().wait(0.01)
        server.answers[path] = SEEN

    ended = watched(
        modelvine, server, then=gone, until=lambda: len(asked(server, "/register")) == 4
    )
    assert ended.code == 0
    assert "nothing listens there: the worker is gone" in ended.out
    assert "the worker is back" in ended.out
    assert len(asked(server, "/unregister")) == 4


def test_the_models_of_a_busy_worker_stay_registered(modelvine: Modelvine, node: Start) -> None:
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: OK})
    silent = Said({"code": 0, "tries": [{**YES, "recognised": False}], "found": None, "busy": True})

    def busy() -> None:
        server.answers[RECOGNISE.replace("_", " ", 1)] = silent

    ended = watched(modelvine, server, then=busy, until=lambda: len(server.heard) > 9)
    assert ended.code == 0
    assert "gone" not in ended.out
    assert len(asked(server, "/register")) == len(asked(server, "/unregister")) == 2


def test_a_node_that_refuses_for_a_while_is_reported_once_and_asked_again(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{RECOGNISE: SEEN, REGISTER: LEARNED, UNREGISTER: OK})

    def refuse() -> None:
        server.answers[RECOGNISE.replace("_", " ", 1)] = Said({"message": "in trouble"}, status=500)

    ended = watched(modelvine, server, then=refuse, until=lambda: len(server.heard) > 9)
    assert ended.code == 0
    assert ended.out.count("in trouble") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf"])
def test_the_seconds_between_looks_must_be_positive_and_finite(
    modelvine: Modelvine, seconds: str
) -> None:
    assert modelvine("attach", "127.0.0.1:1", "--every", seconds).code == 2


def test_attach_fails_where_nothing_listens(modelvine: Modelvine, node: Start) -> None:
    nothing = {**NO, "came": "nothing listens there"}
    node(**{RECOGNISE: Said({"code": 0, "tries": [nothing, nothing], "found": None})})
    ended = modelvine("attach", "http://127.0.0.1:9")
    assert ended.code == 1
    assert ended.err == (
        "modelvine: nothing listens at http://127.0.0.1:9: start the worker, or name another port\n"
    )


def test_a_port_without_a_server_is_told_from_grpc_that_only_got_no_answer(
    modelvine: Modelvine, node: Start
) -> None:
    nothing = {**NO, "came": "nothing listens there"}
    mute = {**NO, "dialect": "localai_grpc", "came": "no answer of gRPC within 1 s"}
    node(**{RECOGNISE: Said({"code": 0, "tries": [nothing, mute], "found": None})})
    assert "nothing listens at 127.0.0.1:9" in modelvine("attach", "127.0.0.1:9").err


def test_tries_with_the_same_result_are_told_together_and_only_once(
    modelvine: Modelvine, node: Start
) -> None:
    other = {**YES, "came": "404", "recognised": False}
    node(**{RECOGNISE: Said({"code": 0, "tries": [NO, other], "found": None})})
    ended = modelvine("attach", "http://127.0.0.1:9")
    assert ended.out == "looking at http://127.0.0.1:9\n"
    assert "the node tried: GET /info, GET /v1/models (404).\n" in ended.err


def test_the_tries_are_told_while_attach_waits_and_again_once_the_worker_is_found(
    modelvine: Modelvine, node: Start
) -> None:
    silent = [
        {**attempt, "came": "no answer within 1 s", "recognised": False} for attempt in (NO, YES)
    ]
    loading = Said({"code": 0, "tries": [silent[0], silent[1] | {"waits": True}], "found": None})
    path = RECOGNISE.replace("_", " ", 1)
    server = node(**{RECOGNISE: loading, REGISTER: LEARNED, UNREGISTER: OK})

    def play() -> None:
        pause = threading.Event()
        while len(server.heard) < 3:
            pause.wait(0.01)
        server.answers[path] = SEEN

    thread = threading.Thread(target=play)
    thread.start()
    ending = ended_by(signal.SIGINT, server, after=7)
    ended = modelvine("attach", "127.0.0.1:11434", "--project", "p", "--every", "0.05")
    thread.join()
    ending.join()
    assert ended.out.splitlines()[:5] == [
        "looking at 127.0.0.1:11434",
        "  no   tgi: GET /info, openai: GET /v1/models: no answer within 1 s",
        "waiting until it is ready",
        "  no   tgi: GET /info: 404",
        "  yes  openai: GET /v1/models: 200, 2 models, Ollama",
    ]


def test_where_no_worker_is_recognised_attach_says_what_was_tried(
    modelvine: Modelvine, node: Start
) -> None:
    node(
        **{RECOGNISE: Said({"code": 0, "tries": [NO, {**YES, "recognised": False}], "found": None})}
    )
    ended = modelvine("attach", "http://127.0.0.1:9")
    assert ended.code == 1
    assert "GET /info (404); GET /v1/models (200, 2 models, Ollama)" in ended.err
    assert "--dialect" in ended.err


@pytest.mark.parametrize("learned", [[], [{}]])
def test_a_worker_that_names_no_model_needs_the_model_option(
    modelvine: Modelvine, node: Start, learned: list[dict[str, object]]
) -> None:
    mute = Said({"code": 0, "tries": [YES], "found": {**FOUND, "models": []}})
    silent = Said({"code": 0, "message": "ok", "learned": learned})
    server = node(**{RECOGNISE: mute, REGISTER: silent, UNREGISTER: OK})
    ended = modelvine("attach", "127.0.0.1:1")
    assert ended.code == 1
    assert "--model NAME" in ended.err
    thread = ended_by(signal.SIGINT, server, after=3)
    ended = modelvine("attach", "127.0.0.1:1", "--model", "own", "--cid", "")
    thread.join()
    assert ended.code == 0
    assert server.heard[2].body["model"] == "own"
    assert server.heard[2].body["cid"] == ""
    assert "it reports nothing about itself" in ended.out


def test_a_refused_registration_is_reported_and_leaves_nothing_behind(
    modelvine: Modelvine, node: Start
) -> None:
    refused = Said({"code": 1001, "message": "too many models"}, status=400)
    server = node(**{RECOGNISE: SEEN, REGISTER: refused, UNREGISTER: OK})
    ended = modelvine("attach", "127.0.0.1:1")
    assert ended.code == 1
    assert "too many models" in ended.err
    assert [request.path for request in server.heard] == [
        "/api/v1/recognise",
        "/api/v0/ai/model/register",
    ]


def test_a_failed_withdrawal_is_reported_with_the_command_that_repeats_it(
    modelvine: Modelvine, node: Start
) -> None:
    down = Said({"code": 5000, "message": "the store is down"}, status=500)
    server = node(**{RECOGNISE: SEEN, REGISTER: OK, UNREGISTER: down})
    thread = ended_by(signal.SIGINT, server, after=3)
    ended = modelvine("attach", "127.0.0.1:1", "--project", "p")
    thread.join()
    assert ended.code == 1
    assert "modelvine unregister p llama3:latest --cid 1" in ended.err


@pytest.mark.parametrize("project", ["", "mine"])
def test_a_list_that_names_project_url_and_type_is_registered_as_it_says(
    modelvine: Modelvine, node: Start, project: str
) -> None:
    models = [
        {"name": "Llama3-8B", "type": 0, "api": "http://127.0.0.1:9/v1/chat/completions", "project": "DecentralGPT"},
        {"name": "own", "api": "http://127.0.0.1:9/custom/chat", "project": "DecentralGPT"},
    ]  # fmt: skip
    recognised = Said({"code": 0, "tries": [YES], "found": FOUND | {"models": models}})
    server = node(**{RECOGNISE: recognised, REGISTER: LEARNED, UNREGISTER: OK})
    thread = ended_by(signal.SIGINT, server, after=3)
    ended = modelvine(
        "attach", "127.0.0.1:9", *(("--project", project) if project else ()), "--cid", "", "--type", "image"
    )  # fmt: skip
    thread.join()
    assert ended.code == 0
    expected = project or "DecentralGPT"
    _, one, two, *left = [request.body for request in server.heard]
    common = {"project": expected, "cid": "", "dialect": "openai_http"}
    assert one == {**common, "model": "Llama3-8B", "type": 0, "api": models[0]["api"]}
    assert two == {**common, "model": "own", "type": 1, "api": models[1]["api"]}
    withdrawn = [body for body in left if "model" in body]
    assert [body["project"] for body in withdrawn] == [expected] * 2
    assert f"withdrew {expected}/own" in ended.out
