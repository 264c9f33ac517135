"""`modelvine top`: rates between two looks, a picture that fits the terminal, and a terminal that is restored at the end."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli.console.text import _width
from node.cli.console.top_view import Rates, TopCounters, TopLook, counters_in, frame, models, rates
from tests.node.cli.stand_in import OTHER, PEER, Said

ROOT = Path(__file__).parents[3]


def load(model="tiny", **fields):
    row = {
        "project": "p", "model": model, "cid": "", "type": 0, "in_flight": 3, "queued": 1, "slots": 4, "learned": False,
        "rate": 41.0, "first_byte": 0.2, "age": 0.0,
    }  # fmt: skip
    return row | fields


def node_row(node=PEER, name="gpu1", **fields):
    row = {
        "node": node, "name": name, "state": "alive", "standing": "serving", "round_trip": 0.0, "connection": "self",
        "models": 1, "load": [load()], "self": node == PEER,
    }  # fmt: skip
    return row | fields


STATUS = {
    "ready": {"http": "ok"}, "name": "gpu1", "peer": PEER, "uptime": 7500.0, "version": "1.0", "nodes_alive": 2,
    "in_flight": 3, "processes": 1,
}  # fmt: skip
SERVICE = {"project": "p", "model": "tiny", "type": 0, "cid": "", "health": "ok"}
LOOK = TopLook(
    100.0,
    STATUS,
    [node_row(), node_row(OTHER, "gpu2", connection="relayed", round_trip=0.03, load=[load(in_flight=1, slots=None)])],
    [{"node": PEER, "services": [SERVICE]}, {"node": OTHER, "services": [SERVICE | {"health": "ok"}]}],
    TopCounters({"200": 10.0}, 100.0, 10.0, 0.002),
    {"p/tiny": [0.62, 1.9]},
)  # fmt: skip
LATER = replace(
    LOOK,
    at=102.0,
    counters=TopCounters(
        {"200": 30.0, "429": 4.0, "404": 2.0, "502": 1.0, "499": 8.0}, 300.0, 50.0, 0.002
    ),
)


def test_rates_are_what_was_counted_between_two_looks():
    assert rates(LOOK, LATER) == Rates(
        requests=17.5, failed=0.5, refused=3.0, left=4.0, read=100.0, written=20.0
    )


def test_a_node_that_restarted_counts_from_zero():
    anew = replace(LATER, counters=TopCounters({"200": 4.0}, 20.0, 2.0))
    found = rates(LATER, replace(anew, at=104.0))
    assert (found.requests, found.read) == (2.0, 10.0)
    assert rates(LOOK, LOOK) == Rates(0, 0, 0, 0, 0, 0)


def test_metrics_are_summed_over_their_labels():
    samples = [
        ("modelvine_requests_total", {"kind": "chat", "status": "200"}, 3.0),
        ("modelvine_requests_total", {"kind": "embeddings", "status": "200"}, 4.0),
        ("modelvine_tokens_total", {"part": "prompt", "model": "a"}, 5.0),
        ("modelvine_tokens_total", {"part": "completion", "model": "a"}, 6.0),
        ("modelvine_loop_lag_seconds", {}, 0.5),
        ("process_open_fds", {}, 9.0),
    ]
    assert counters_in(samples) == TopCounters({"200": 7.0}, 5.0, 6.0, 0.5)


def test_the_replicas_of_a_model_are_one_row_and_the_busiest_model_comes_first():
    busy = replace(
        LOOK,
        nodes=[node_row(load=[load(), load("idle", in_flight=0, queued=0, rate=0.0)])],
        catalog=[{"node": PEER, "services": [SERVICE | {"model": "idle"}, SERVICE]}],
    )
    first, second = models(busy)
    assert (first["model"], first["in_flight"], first["slots"]) == ("p/tiny", 3, 4)
    assert (second["model"], second["replicas"], second["expected"]) == ("p/idle", 1, [])
    # The slots of only some replicas say nothing about the model.
    (both,) = models(LOOK)
    assert (both["replicas"], both["in_flight"], both["slots"]) == (2, 4, None)


def test_a_picture_fits_eighty_columns_and_says_what_matters():
    lines = frame(LOOK, LATER, columns=80, clock="14:03:22")
    assert max(map(_width, lines)) <= 80
    assert lines[0].startswith("gpu1  ok  up 2 h 05 min  2 of 2 nodes alive  1.0  14:03:22")
    assert lines[1] == "requests to this node: 17.5/s, 3 in flight, 0.5/s failed, 3.0/s refused"
    assert lines[2] == "its workers' tokens: 100/s input, 20/s output; event loop lag 2 ms"
    text = "\n".join(lines)
    assert "gpu2" in text and "relayed" in text and "0.62 to 1.90 s" in text  # noqa: PT018


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [6, 10, 24, 0])
def test_hostile_and_wide_names_neither_control_the_terminal_nor_break_the_picture(columns, height):
    many = [node_row(f"{OTHER[:-3]}{n:03}", "漢字\x1b[2J\n" * 9, self=False) for n in range(40)]
    services = [SERVICE | {"model": f"\x1b]0;x\x07{'漢' * 40}{n}"} for n in range(40)]
    hostile = replace(
        LOOK,
        status=STATUS | {"name": "\x1b[31mred"},
        nodes=[node_row(), *many],
        catalog=[{"node": OTHER, "services": services}],
    )
    lines = frame(LOOK, hostile, columns=columns, lines=height)
    assert all(line.isprintable() for line in lines)
    assert max(map(_width, lines)) <= columns
    assert not height or len(lines) <= height
    assert height not in (10, 24) or any(line.startswith("… ") for line in lines)


ANSWERS = {
    "GET_/api/v1/status": Said(STATUS),
    "GET_/api/v1/nodes": Said({"nodes": list(LOOK.nodes)}),
    "GET_/api/v1/catalog": Said({"nodes": list(LOOK.catalog)}),
    "GET_/metrics": Said(b'modelvine_requests_total{kind="chat",status="200"} 10.0\n'),
    "GET_/api/v1/route": Said({"candidates": [{"figures": {"expected_seconds": 0.5}}, {}]}),
}


def test_without_a_terminal_the_picture_is_printed_once(modelvine, node):
    node(**ANSWERS)
    ended = modelvine("top", "--every", "0.01")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "p/tiny" in ended.out and "0.50 s" in ended.out  # noqa: PT018


def test_json_output_has_rows_of_nodes_and_models(modelvine, node):
    node(**ANSWERS)
    payload = json.loads(modelvine("top", "--every", "0.01", "--json").out)
    assert payload["requests"]["in_flight"] == 3
    assert [row["name"] for row in payload["nodes"]] == ["gpu1", "gpu2"]
    assert payload["models"][0]["expected"] == [0.5]


def test_a_model_that_is_gone_meanwhile_has_no_expected_seconds(modelvine, node):
    answers = {path: answer for path, answer in ANSWERS.items() if "route" not in path}
    node(**answers)
    assert (
        json.loads(modelvine("top", "--every", "0.01", "--json").out)["models"][0]["expected"] == []
    )


def test_an_interval_of_zero_seconds_is_refused(modelvine, node):
    node()
    assert modelvine("top", "--every", "0").code == 2


# A shell that runs the tests in the background makes them, and all that they start, ignore Ctrl-C.
UNDER_A_SHELL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("node", run_name="__main__")
"""


def read_from(terminal, *, until=0, within=30.0):
    """Return what is shown until so many pictures have come, or until the other end is closed."""
    output, ends = b"", time.monotonic() + within
    while not until or output.count(b"\x1b[H") < until:
        if not select.select([terminal], [], [], ends - time.monotonic())[0]:
            raise AssertionError(f"nothing more is shown: {output[-200:]!r}")
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break
    return output


def test_a_dumb_terminal_shows_one_picture(node):
    server = node(**ANSWERS)
    master, tty = pty.openpty()
    command = [sys.executable, "-m", "node", "top", "--every", "0.05", "--node", server.url]
    with subprocess.Popen(
        command, stdout=tty, stdin=tty, cwd=ROOT, env=os.environ | {"TERM": "dumb"}
    ) as process:
        os.close(tty)
        try:
            output = read_from(master)
            assert process.wait(10) == 0
        finally:
            process.kill()
    os.close(master)
    assert b"\x1b" not in output
    assert b"p/tiny" in output


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_terminal_is_restored_at_the_end(node, how, code):
    server = node(**ANSWERS)
    master, tty = pty.openpty()
    command = [sys.executable, "-c", UNDER_A_SHELL, "top", "--every", "0.05", "--node", server.url]
    with subprocess.Popen(
        command,
        stdout=tty,
        stderr=tty,
        stdin=tty,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(tty)
        try:
            output = read_from(master, until=3)
            process.send_signal(how)
            output += read_from(master)
            assert process.wait(10) == code
        finally:
            process.kill()
    os.close(master)
    assert output.startswith(b"\x1b[?1049h\x1b[?25l")
    assert output.rstrip(b"\r\n").endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"p/tiny" in output
