import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from node.cli.console import node_lookup
from node.cli.console.node_lookup import leave_trace, remove_trace
from node.cli.console.text import _width
from node.secrets import identity
from registry.signing import ID_HEAD
from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import OTHER, PEER, Said, StandIn

ROOT = Path(__file__).parents[3]
Start = Callable[..., StandIn]

REGISTER = "POST_/api/v0/ai/model/register"
UNREGISTER = "POST_/api/v0/ai/model/unregister"
UNREGISTER_PROJECT = "POST_/api/v0/ai/project/unregister"
CATALOG = "GET_/api/v1/catalog"
NODES = "GET_/api/v1/nodes"
STATUS = "GET_/api/v1/status"
ROUTE = "GET_/api/v1/route"
OK = Said({"code": 0, "message": "ok"})


KNOWN = {"context": 4096, "input_modalities": ["text", "image"]}


def service(
    project: str, model: str, kind: int = 0, cid: str = "", **fields: object
) -> dict[str, object]:
    return {"project": project, "model": model, "type": kind, "cid": cid, "context": None, **fields}


OWN = [
    service("demo", "tiny", health="ok"),
    service("demo", "tiny", cid="b", health="never answered"),
]
TWO_NODES = Said(
    {
        "digest": "ab",
        "records": 2,
        "nodes": [
            {"node": PEER, "services": OWN},
            {
                "node": OTHER,
                "services": [service("demo", "tiny", **KNOWN), service("art", "painter", 1)],
            },
        ],
    }
)


def test_register_sends_its_arguments_and_confirms_the_registration(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{REGISTER: OK})
    ended = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080")
    assert ended.code == 0
    assert ended.out.startswith("registered demo/tiny (text), served by http://127.0.0.1:8080")
    assert server.heard[0].body == {
        "project": "demo",
        "model": "tiny",
        "api": "http://127.0.0.1:8080",
        "type": 0,
        "cid": "",
    }


def test_register_shows_what_the_worker_reports_about_itself(
    modelvine: Modelvine, node: Start
) -> None:
    learned = {"software": "llama.cpp b1", "context": 4096, "input_modalities": ["text", "image"],
               "output_modalities": ["text", "audio"], "tools": True, "slots": 4}  # fmt: skip
    node(**{REGISTER: Said({"code": 0, "message": "ok", "learned": [learned]})})
    ended = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080")
    output = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080", "--json").out
    assert json.loads(output)["learned"] == [learned]
    assert ended.out.splitlines()[1:] == [
        "the worker reports: llama.cpp b1; 4,096 tokens; takes text, image; gives audio; calls tools; 4 slots"
    ]


@pytest.mark.parametrize(
    ("models", "own", "noted"),
    [
        (["a", "b"], "", True),
        (["a", "b"], "b", False),
        (["a", "tiny:latest"], "", False),
        (["file.gguf"], "", False),
    ],
)
def test_a_model_name_that_the_worker_does_not_list_is_noted(
    modelvine: Modelvine, node: Start, models: list[str], own: str, noted: bool
) -> None:
    node(**{REGISTER: Said({"code": 0, "learned": [{"software": "Ollama", "models": models}]})})
    arguments = ("--worker-model", own) if own else ()
    ended = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080", *arguments)
    assert ended.code == 0
    assert ("but does not list 'tiny'; its models: a, b" in ended.out) is noted


def test_register_passes_every_option_on(modelvine: Modelvine, node: Start) -> None:
    server = node(**{REGISTER: OK})
    ended = modelvine(
        "register", "art", "painter", "http://127.0.0.1:8081/v1", "--type", "image-edit", "--cid", "b",
        "--dialect", "openai_http", "--worker-model", "sd", "--capacity", "4", "--context", "8192", "--json",
    )  # fmt: skip
    sent = {
        "project": "art",
        "model": "painter",
        "api": "http://127.0.0.1:8081/v1",
        "type": 2,
        "cid": "b",
        "dialect": "openai_http",
        "worker_model": "sd",
        "capacity": 4,
        "context": 8192,
    }
    assert server.heard[0].body == json.loads(ended.out) == sent


def test_register_passes_on_headers_and_load_options_and_prints_no_key(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{REGISTER: OK})
    ended = modelvine(
        "register", "p", "m", "http://127.0.0.1:1", "--header", "authorization: Bearer k-1", "--header", "x-a:b: c",
        "--load", "ContextSize=4096", "--load", "MMap=true", "--load", "Type=llama", "--load", 'Options=["a=b", 1]',
        "--load", "Empty=", "--template", "chatml", "--max-concurrency", "3", "--takes", "text,image", "--json",
    )  # fmt: skip
    assert ended.code == 0
    body = server.heard[0].body
    assert body["headers"] == {"authorization": "Bearer k-1", "x-a": "b: c"}
    assert body["load"] == {
        "ContextSize": 4096, "MMap": True, "Type": "llama", "Options": ["a=b", 1], "Empty": "",
    }  # fmt: skip
    assert (body["template"], body["capacity"]) == ("chatml", 3)
    assert body["input_modalities"] == ["text", "image"]
    assert json.loads(ended.out)["headers"] == ["authorization", "x-a"]
    assert "k-1" not in ended.out + ended.err


def test_a_file_of_a_header_is_named_by_its_absolute_path(
    modelvine: Modelvine, node: Start, tmp_path: Path
) -> None:
    server = node(**{REGISTER: OK})
    headers = {
        "authorization": "Bearer @vllm.key",
        "x-a": "@b/c",
        "x-d": "Bearer @/e",
        "x-f": "g@h",
    }
    arguments = [
        argument for name, value in headers.items() for argument in ("--header", f"{name}: {value}")
    ]
    assert modelvine("register", "p", "m", "http://127.0.0.1:1", *arguments).code == 0
    assert server.heard[0].body["headers"] == headers | {
        "authorization": f"Bearer @{tmp_path}/vllm.key",
        "x-a": f"@{tmp_path}/b/c",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("--header", "secret-1"),
        ("--header", ": secret-1"),
        ("--load", "x"),
        ("--template", "y"),
        ("--takes", "smell"),
    ],
)
def test_malformed_options_are_refused_without_repeating_a_key(
    modelvine: Modelvine, words: tuple[str, str]
) -> None:
    ended = modelvine("register", "p", "m", "http://127.0.0.1:1", *words)
    assert ended.code == 2
    assert "secret-1" not in ended.err


@pytest.mark.parametrize(("written", "kind"), [("embedding", 3), ("6", 6), ("rerank", 6), ("0", 0)])
def test_a_type_is_a_name_or_a_number(
    modelvine: Modelvine, node: Start, written: str, kind: int
) -> None:
    server = node(**{REGISTER: OK})
    assert modelvine("register", "p", "m", "http://127.0.0.1:1", "--type", written).code == 0
    assert server.heard[0].body["type"] == kind


@pytest.mark.parametrize(
    "words", [("--type", "video"), ("--type", "16"), ("--capacity", "-1"), ("--capacity", "many")]
)
def test_register_refuses_impossible_types_and_capacities(
    modelvine: Modelvine, words: tuple[str, str]
) -> None:
    assert modelvine("register", "p", "m", "http://127.0.0.1:1", *words).code == 2


def test_a_refusal_is_told_in_the_nodes_words(modelvine: Modelvine, node: Start) -> None:
    payload = {"code": 1001, "message": "the url and the node are not on the same machine"}
    node(**{REGISTER: Said(payload, status=400)})
    ended = modelvine("register", "demo", "tiny", "http://192.0.2.1:8080")
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err == (
        "modelvine: the url and the node are not on the same machine (HTTP 400, code 1001)\n"
    )


def test_an_error_says_when_to_try_again(modelvine: Modelvine, node: Start) -> None:
    busy = Said({"code": 1017, "message": "all full"}, status=429, headers={"Retry-After": "3"})
    node(**{ROUTE: busy})
    assert "all full; try again in 3 s" in modelvine("route", "tiny").err


def test_unregister_takes_one_model_or_the_whole_project(modelvine: Modelvine, node: Start) -> None:
    server = node(**{UNREGISTER: OK, UNREGISTER_PROJECT: OK})
    ended = modelvine("unregister", "demo", "tiny", "--cid", "b")
    assert "unregistered demo/tiny, replica b, at the node" in ended.out
    assert "unregistered demo " in modelvine("unregister", "demo").out
    assert [request.body for request in server.heard] == [
        {"project": "demo", "model": "tiny", "cid": "b"},
        {"project": "demo"},
    ]


def test_unregistering_an_unknown_model_is_no_error(modelvine: Modelvine, node: Start) -> None:
    node(**{UNREGISTER: Said({"code": 0, "message": "not existed"})})
    ended = modelvine("unregister", "demo", "tiny")
    assert (ended.code, "was not registered" in ended.out) == (0, True)
    assert json.loads(modelvine("unregister", "demo", "tiny", "--json").out)["removed"] is False


def test_a_replica_without_its_model_is_wrong_usage(modelvine: Modelvine) -> None:
    assert modelvine("unregister", "demo", "--cid", "b").code == 2


def test_models_counts_nodes_and_replicas(modelvine: Modelvine, node: Start) -> None:
    node(**{CATALOG: TWO_NODES})
    lines = modelvine("models").out.splitlines()
    assert [line.split() for line in lines] == [
        ["MODEL", "TYPE", "CONTEXT", "TAKES", "NODES", "REPLICAS", "HEALTH"],
        ["art/painter", "image", "-", "-", "1", "1", "-"],
        ["demo/tiny", "text", "4,096", "text,", "image", "2", "3", "ok;", "never", "answered"],
    ]


def test_models_with_json_names_the_nodes(modelvine: Modelvine, node: Start) -> None:
    node(**{CATALOG: TWO_NODES})
    payload = json.loads(modelvine("models", "--json").out)
    assert payload[1] == {
        "project": "demo",
        "model": "tiny",
        "type": 0,
        "context": 4096,
        "takes": ["text", "image"],
        "nodes": sorted([PEER, OTHER]),
        "replicas": 3,
        "health": ["ok", "never answered"],
    }


def test_an_empty_network_says_what_to_do(modelvine: Modelvine, node: Start) -> None:
    node(**{CATALOG: Said({"nodes": []})})
    assert "modelvine register" in modelvine("models").out


def test_names_from_other_nodes_cannot_control_the_terminal(
    modelvine: Modelvine, node: Start
) -> None:
    hostile = Said({"nodes": [{"node": PEER, "services": [service("a\x1b[2J", "b\nc\u202e")]}]})
    node(**{CATALOG: hostile})
    shown = modelvine("models").out
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_columns_stay_aligned_beside_wide_characters(modelvine: Modelvine, node: Start) -> None:
    services = [service("p", "模型"), service("p", "abcd")]
    node(**{CATALOG: Said({"nodes": [{"node": PEER, "services": services}]})})
    narrow, wide = modelvine("models").out.splitlines()[1:]
    assert narrow.index("text") == wide.index("text") + len("模型")


def a_node(**more: object) -> dict[str, object]:
    return {
        "node": PEER, "state": "alive", "standing": "serving", "last_heard": 0.42, "round_trip": 0.0031,
        "connection": "direct", "addresses": [], "links": [], "models": 2, "agent": "modelvine/0.1.0",
        "since": 61.0, "why": "it said so", "origin": "record", "load": [],
    } | more  # fmt: skip


def a_load(**more: object) -> dict[str, object]:
    return {
        "project": "demo", "model": "tiny", "cid": "", "in_flight": 3, "queued": 0, "slots": 8, "rate": 41.2,
        "first_byte": 0.35, "age": 1.2, "learned": False,
    } | more  # fmt: skip


def test_peers_shows_what_is_known_of_each_node(modelvine: Modelvine, node: Start) -> None:
    busy = [a_load(), a_load(model="large", in_flight=1, queued=2, slots=None, rate=0.0)]
    rows = [
        a_node(load=busy, name="gpu-7"),
        a_node(node=OTHER, connection="self", origin="", round_trip=0.0),
    ]
    node(**{NODES: Said({"nodes": rows})})
    shown = modelvine("peers").out.splitlines()
    last_heard, reason = "420 ms ago 3.1 ms direct, record", "it said so"
    since = "61.0 s"
    assert " ".join(shown[1].split()) == (
        f"gpu-7 {PEER} alive {since} serving 2 4 in flight, 2 queued, ~41 tokens/s, 1.2 s ago {last_heard} {reason}"
    )
    assert " ".join(shown[2].split()) == f"- {OTHER} alive {since} serving 2 - - - self {reason}"
    assert json.loads(modelvine("peers", "--json").out) == {"nodes": rows}


def a_status(**ready: str) -> dict[str, object]:
    return {
        "name": "gpu-1",
        "peer": PEER, "version": "0.1.0", "uptime": 7500.0, "http": "http://127.0.0.1:6100", "p2p": ["/ip4/a", "/ip4/b"],
        "link": "127.0.0.1:7", "ready": {"http": "ok", "mesh": "ok", "store": "ok"} | ready, "models": 1, "processes": 2,
        "nodes_alive": 3, "in_flight": 0, "load": [], "digest": "ab", "store": "sqlite", "profile": "local",
    }  # fmt: skip


def test_status_of_a_healthy_node(modelvine: Modelvine, node: Start) -> None:
    node(**{STATUS: Said(a_status())})
    shown = modelvine("status").out
    assert shown.startswith("state        ok\n")
    assert "up for       2 h 05 min" in shown
    assert shown.count("p2p") == 2
    assert "processes    2\n" in shown
    node(**{STATUS: Said(a_status() | {"processes": 1})})
    assert "processes" not in modelvine("status").out


def test_status_names_the_health_of_each_worker(modelvine: Modelvine, node: Start) -> None:
    workers = [
        {"project": "p", "model": "tiny", "cid": "", "health": "ok"},
        {"project": "p", "model": "tiny", "cid": "b", "health": "never answered"},
    ]
    node(**{STATUS: Said(a_status() | {"workers": workers})})
    shown = modelvine("status").out
    assert "worker       p/tiny: ok\n" in shown
    assert "worker       p/tiny (b): never answered\n" in shown


def test_register_passes_on_warnings(modelvine: Modelvine, node: Start) -> None:
    warning = "no answer from http://127.0.0.1:8080 for demo/tiny: nothing listens there"
    node(**{REGISTER: Said({"code": 0, "message": "ok", "warnings": [warning]})})
    ended = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080")
    assert ended.code == 0
    assert f"warning: {warning}" in ended.err
    ended = modelvine("register", "demo", "tiny", "http://127.0.0.1:8080", "--json")
    assert json.loads(ended.out)["warnings"] == [warning]


def test_status_names_the_load_of_each_busy_model(modelvine: Modelvine, node: Start) -> None:
    node(**{STATUS: Said(a_status() | {"load": [a_load(age=0.0)]})})
    load = "load         demo/tiny: 3 of 8 in flight, ~41 tokens/s, first byte in 350 ms\n"
    assert load in modelvine("status").out
    node(**{STATUS: Said(a_status() | {"load": [a_load(age=0.0, learned=True)]})})
    assert "3 of 8 in flight, capacity: learned 8, ~41 tokens/s" in modelvine("status").out


def test_status_names_the_parts_that_do_not_work(modelvine: Modelvine, node: Start) -> None:
    node(**{STATUS: Said(a_status(mesh="restarting"))})
    shown = modelvine("status").out
    assert shown.startswith("state        degraded\n  mesh       restarting\n")
    assert "store        sqlite" in shown


def a_candidate(**more: object) -> dict[str, object]:
    return {
        "node": PEER, "project": "demo", "model": "tiny", "cid": "", "route": "direct", "in_flight": 1, "score": 1, "load": None,
        "chosen": True, "why": "drawn by p2c", "figures": {}, "circuit": {"state": "closed", "failures": 0, "retry_in": 0.0},
    } | more  # fmt: skip


def test_route_explains_the_candidates_and_the_excluded_replicas(
    modelvine: Modelvine, node: Start
) -> None:
    left_out = {
        "node": OTHER,
        "project": "demo",
        "model": "tiny",
        "cid": "b",
        "reason": "it is draining",
    }
    explained = {
        "model": "tiny",
        "policy": "p2c",
        "fallbacks": [],
        "candidates": [
            a_candidate(name="gpu-7"),
            a_candidate(name="cpu-1") | {"figures": {"expected_seconds": 1.5, "error": 0.18}},
        ],
        "excluded": [left_out],
    }
    server = node(**{ROUTE: Said(explained)})
    shown = modelvine("route", "tiny", "--project", "my demo").out.splitlines()
    assert server.heard[0].path == "/api/v1/route?model=tiny&project=my+demo"
    assert shown[2].split() == [
        "1",
        "gpu-7",
        PEER,
        "direct",
        "demo/tiny",
        "-",
        "1",
        "1",
        "-",
        "-",
        "closed",
    ]
    assert shown[3] == "    drawn by p2c"
    assert "1.50 s ±18%" in shown[4]
    assert shown[-1].split() == ["-", OTHER, "demo/tiny", "b", "it", "is", "draining"]


def test_route_takes_a_message_or_a_request_from_a_file_and_a_session(
    modelvine: Modelvine, node: Start, tmp_path: Path
) -> None:
    circuit = {"state": "open", "failures": 3, "retry_in": 1.25}
    explained = {
        "model": "tiny",
        "policy": "session",
        "fallbacks": ["small", "smaller"],
        "candidates": [a_candidate(circuit=circuit)],
        "excluded": [],
    }
    server = node(**{"POST_/api/v1/route": Said(explained)})
    shown = modelvine("route", "tiny", "--message", "hi").out
    assert "open, 1.2 s" in shown
    assert "fallback models: small, smaller" in shown
    hi = [{"role": "user", "content": "hi"}]
    assert server.heard[-1].body == {"model": "tiny", "messages": hi}
    (tmp_path / "said.json").write_text(json.dumps({"model": "x", "messages": hi, "tools": []}))
    (tmp_path / "list.json").write_text(json.dumps(hi))
    options = ("--session", "s", "--project", "demo")
    for name, more in (("said.json", {"tools": []}), ("list.json", {})):
        assert not modelvine("route", "tiny", "--chat", str(tmp_path / name), *options).err
        assert server.heard[-1].body == {"model": "tiny", "messages": hi, **more}
        assert server.heard[-1].headers["x-modelvine-session"] == "s"
        assert server.heard[-1].headers["x-modelvine-project"] == "demo"


@pytest.mark.parametrize("text", ["1", "no JSON", None])
def test_route_says_what_is_wrong_with_a_file(
    modelvine: Modelvine, node: Start, tmp_path: Path, text: str | None
) -> None:
    node()
    file = tmp_path / "said.json"
    if text is not None:
        file.write_text(text)
    ended = modelvine("route", "tiny", "--chat", str(file))
    assert ended.code == 2
    assert str(file) in ended.err


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("words", [("models",), ("status",), ("chat", "tiny", "hello")])
def test_without_a_node_the_error_says_how_to_start_one(
    modelvine: Modelvine, words: tuple[str, ...]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = modelvine(*words, "--node", url)
    assert ended.code == 1
    assert f"no node answers at {url} (--node): " in ended.err
    assert "`modelvine up`" in ended.err


@pytest.mark.parametrize(
    "url", ["127.0.0.1:6100", "ftp://127.0.0.1", "http://", "http://a:99999", "http://a b"]
)
def test_an_invalid_url_is_refused_before_anything_is_sent(modelvine: Modelvine, url: str) -> None:
    ended = modelvine("models", "--node", url)
    assert ended.code == 2
    assert "it must look like http://127.0.0.1:6100" in ended.err


NAMED = [
    a_node(name="gpu-7", self=False),
    a_node(node=OTHER, name="attic", self=True, connection="self", origin=""),
    a_node(node="12D3KooWgone", name="attic", self=False, state="left"),
]


@pytest.mark.parametrize("called", ["gpu-7", PEER, PEER[:12]])
def test_a_node_is_named_by_a_name_or_the_beginning_of_its_id(
    modelvine: Modelvine, node: Start, called: str
) -> None:
    catalog = [{**row, "services": [service("demo", row["name"])]} for row in NAMED]
    explained = {
        "model": "tiny",
        "policy": "p2c",
        "fallbacks": [],
        "candidates": [],
        "excluded": [],
    }
    server = node(
        **{
            NODES: Said({"nodes": NAMED}),
            CATALOG: Said({"nodes": catalog}),
            ROUTE: Said(explained),
        },
        **{"POST_/v1/chat/completions": Said({"code": 1001, "message": "no"}, status=404)},
        **{"POST_/api/v1/route": Said(explained)},
    )
    (row,) = json.loads(modelvine("peers", "--node", called, "--json").out)["nodes"]
    assert row["node"] == PEER
    (model,) = json.loads(modelvine("models", "--node", called, "--json").out)
    assert (model["model"], model["nodes"]) == ("gpu-7", [PEER])
    # `route` and `chat` leave it to the node to find the one that is named.
    modelvine("route", "tiny", "--node", called)
    assert server.heard[-1].path == f"/api/v1/route?model=tiny&node={called}"
    for arguments in (("chat", "tiny", "Hi"), ("route", "tiny", "--message", "Hi")):
        modelvine(*arguments, "--node", called)
        assert server.heard[-1].headers["x-modelvine-node"] == called


def test_a_node_that_left_is_meant_only_if_no_other_node_has_its_name(
    modelvine: Modelvine, node: Start
) -> None:
    node(**{NODES: Said({"nodes": NAMED})})
    assert modelvine("peers", "--node", "attic").out.splitlines()[1].split()[1] == OTHER
    node(**{NODES: Said({"nodes": NAMED[2:]})})
    assert modelvine("peers", "--node", "attic").out.splitlines()[1].split()[1] == "12D3KooWgone"


def test_a_name_of_no_node_or_of_several_is_refused(modelvine: Modelvine, node: Start) -> None:
    node(**{NODES: Said({"nodes": [*NAMED, a_node(node="12D3KooWtwin", name="gpu-7")]})})
    ended = modelvine("peers", "--node", "gpu-7")
    assert (ended.code, f"'gpu-7' may be any of {PEER}, 12D3KooWtwin" in ended.err) == (1, True)
    ended = modelvine("peers", "--node", "cellar")
    assert (ended.code, "no node is called 'cellar'" in ended.err) == (1, True)


def test_commands_that_only_the_node_itself_can_carry_out_refuse_another_node(
    modelvine: Modelvine, node: Start
) -> None:
    server = node(**{NODES: Said({"nodes": NAMED}), REGISTER: OK, STATUS: Said(a_status())})
    for arguments in (
        ("status",),
        ("register", "p", "m", "http://127.0.0.1:1"),
        ("unregister", "p"),
    ):
        ended = modelvine(*arguments, "--node", "gpu-7")
        assert (ended.code, f"'gpu-7' is another node, {PEER}" in ended.err) == (2, True)
    assert {request.path for request in server.heard} == {"/api/v1/nodes"}
    assert modelvine("status", "--node", "attic").code == 0


def test_peer_ids_begin_as_the_registrys_do() -> None:
    assert node_lookup._ID_HEAD == ID_HEAD


def at_terminal(url: str, columns: int, *arguments: str) -> list[str]:
    """Return the lines that a command prints at a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-m", "node", *arguments, "--node", url],
        stdin=slave, stdout=slave, stderr=subprocess.PIPE, env={**environment, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        os.close(slave)
        shown = b""
        with suppress(OSError):  # Linux: the other end of the terminal is closed
            while chunk := os.read(master, 4096):
                shown += chunk
    os.close(master)
    assert process.returncode == 0
    return shown.decode().splitlines()


def test_tables_fit_the_terminal_unless_wide_ones_are_asked_for(node: Start) -> None:
    busy = [a_load(), a_load(model="large")]
    nodes = [
        a_node(name="g" * 64, load=busy, self=False),
        a_node(node=OTHER, name="attic", self=True),
    ]
    explained = {
        "model": "tiny", "policy": "p2c", "fallbacks": [],
        "excluded": [{**a_candidate(name="模型" * 20), "reason": "it is draining"}],
        "candidates": [a_candidate(name="gpu-7", model="m" * 200, why="because " * 20)],
    }  # fmt: skip
    url = node(
        **{NODES: Said({"nodes": nodes}), ROUTE: Said(explained)},
        **{CATALOG: Said({"nodes": [{**nodes[0], "services": [service("demo", "m" * 200)]}]})},
    ).url
    for arguments in (("peers",), ("models",), ("route", "tiny")):
        for columns in (40, 100):
            lines = at_terminal(url, columns, *arguments)
            assert max(map(_width, lines)) <= columns, lines
            assert "…" in "".join(lines)
        wide = at_terminal(url, 80, *arguments, "--wide")
        assert max(map(_width, wide)) > 200 or arguments == ("peers",)
        assert "…" not in "".join(wide)
    assert PEER[:14] in "".join(at_terminal(url, 132, "peers"))
    assert PEER not in "".join(at_terminal(url, 400, "peers"))
    assert PEER in "".join(at_terminal(url, 80, "peers", "--wide"))


def test_without_a_terminal_a_table_is_not_cut(modelvine: Modelvine, node: Start) -> None:
    node(**{NODES: Said({"nodes": [a_node(name="g" * 64)]})})
    assert f"{'g' * 64}  {PEER}  alive" in modelvine("peers").out


@pytest.mark.parametrize(
    "said",
    [
        Said(b"<html>welcome</html>"),
        Said({}),
        Said([]),
        Said(b"<html>404</html>", status=404),
        Said({"detail": "Not Found"}, status=404),
        Said(b"", status=301, headers={"Location": "https://elsewhere"}),
    ],
)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        (CATALOG, ("models",)),
        ("GET_/api/v1/nodes", ("peers",)),
        ("GET_/api/v1/status", ("status",)),
        (ROUTE, ("route", "tiny")),
    ],
)
def test_a_server_that_is_no_node_is_recognised(
    modelvine: Modelvine, node: Start, said: Said, path: str, words: tuple[str, ...]
) -> None:
    server = node(**{path: said})
    ended = modelvine(*words)
    assert ended.code == 1
    assert f"the server at {server.url} (MODELVINE_NODE) " in ended.err
    assert said.headers.get("Location", "--node URL") in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("other", "tiny"), "; the model is in the project: demo"),
        (("demo", "tiny", "--cid", "c"), "; its replicas (--cid): a, b"),
        (("demo", "big"), "; registered at other nodes (--node): attic"),
        (("other",), "; its projects: demo"),
        (("demo", "none"), ""),
    ],
)
def test_unregistering_a_model_that_is_elsewhere_says_where(
    modelvine: Modelvine, node: Start, words: tuple[str, ...], hint: str
) -> None:
    def service(model: str, cid: str) -> dict[str, str]:
        return {"project": "demo", "model": model, "cid": cid}

    nodes = [
        {"node": PEER, "name": "cellar", "self": True, "services": [service("tiny", "a"), service("tiny", "b")]},
        {"node": OTHER, "name": "attic", "self": False, "services": [service("big", "")]},
    ]  # fmt: skip
    missing = Said({"code": 0, "message": "not existed"})
    server = node(
        **{UNREGISTER: missing, UNREGISTER.replace("model", "project"): missing},
        **{CATALOG: Said({"nodes": nodes})},
    )
    name = "/".join(words[:2]) + (f", replica {words[3]}," if "--cid" in words else "")
    ended = modelvine("unregister", *words)
    assert ended.out == f"{name} was not registered at the node {server.url}{hint}\n"
    assert ended.code == 0


def test_the_node_that_runs_with_the_data_directory_is_found(
    modelvine: Modelvine, node: Start, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node(**{CATALOG: TWO_NODES})
    monkeypatch.delenv("MODELVINE_NODE")
    identity.control_token(data_dir)
    leave_trace(data_dir, url=server.url, peer=PEER)
    assert modelvine("models").code == 0
    remove_trace(data_dir)
    remove_trace(data_dir)
    assert not (data_dir / "node.json").exists()


def test_the_node_of_a_flag_beats_that_of_the_environment(
    modelvine: Modelvine, node: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node(**{CATALOG: TWO_NODES})
    monkeypatch.setenv("MODELVINE_NODE", f"http://127.0.0.1:{free_port()}")
    assert modelvine("models", "--node", f"{server.url}/").code == 0


def test_the_control_token_goes_to_a_node_on_this_machine(
    modelvine: Modelvine, node: Start, data_dir: Path
) -> None:
    server = node(**{REGISTER: OK})
    modelvine("register", "p", "m", "http://127.0.0.1:1")
    token = identity.control_token(data_dir)
    leave_trace(data_dir, url=server.url, peer=PEER)
    modelvine("register", "p", "m", "http://127.0.0.1:1")
    assert [request.authorization for request in server.heard] == ["", f"Bearer {token}"]


ANYTHING = ("模型", "a\nb", "\udcff", "a b", "-", "é")


@pytest.mark.parametrize("word", ANYTHING)
@pytest.mark.parametrize(
    "words",
    [
        ("chat", "{}", "{}", "--project", "{}", "--system", "{}"),
        ("chat", "tiny", "Hi", "--node={}"),
        ("chat", "tiny", "Hi", "--node", "http://127.0.0.1:1/{}"),
        ("route", "{}", "--project={}"),
        ("route", "{}", "--project={}", "--session={}", "--message={}"),
        ("models", "--node={}"),
        ("register", "{}", "{}", "{}", "--cid={}"),
        ("unregister", "{}", "{}"),
        ("status", "--data-dir={}"),
    ],
    ids=" ".join,
)
def test_no_argument_of_a_command_causes_a_traceback(
    modelvine: Modelvine, node: Start, words: tuple[str, ...], word: str
) -> None:
    node()
    ended = modelvine(*(w.format(word) for w in words))
    assert ended.code in (1, 2)
    assert ended.err.startswith("modelvine: ")


def test_names_in_headers_are_utf_8(modelvine: Modelvine, node: Start) -> None:
    server = node()
    modelvine("chat", "tiny", "Hi", "--project", "模型")
    assert server.heard[0].headers["x-modelvine-project"].encode("latin-1").decode() == "模型"


def test_a_damaged_trace_counts_as_none(modelvine: Modelvine, node: Start, data_dir: Path) -> None:
    node(**{CATALOG: TWO_NODES})
    data_dir.mkdir()
    (data_dir / "node.json").write_text('{"http": 7')
    assert modelvine("models").code == 0


def test_a_node_that_listens_everywhere_is_called_on_loopback(tmp_path: Path) -> None:
    leave_trace(tmp_path, url="http://0.0.0.0:6100", peer=PEER)
    assert json.loads((tmp_path / "node.json").read_text())["http"] == "http://127.0.0.1:6100"
