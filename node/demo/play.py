"""Script of the demo: one straight line from `register` on one node to tokens from another, then a power cut.

Everything is done with the commands that a person would type, and they are printed before they run.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from node.demo.show import Show
from node.demo.stage import Actor, Stage, StageError

PROJECT = "demo"
QUESTION = "In one sentence, what is a grapevine?"
ANSWER = ("--max-tokens", "80")
SPREAD_WITHIN = 10.0
COMMAND_WITHIN = 120.0


def play(show: Show, stage: Stage, *, keep: bool) -> None:
    """Run the whole demo; raise `StageError` when a part of it does not do what it should."""
    worker, nodes = _start(show, stage)
    model = worker.fields["model"]
    url = worker.ready.split()[1]
    asked = nodes[2].fields["http"]

    show.heading("An operator registers the model at node 1")
    _run(show, "register", PROJECT, model, url, "--node", nodes[0].fields["http"])
    with show.step("the news reaches node 3"):
        _until(lambda: model in _models(asked), "node 3 did not hear of the model")

    show.heading("A user asks node 3, which has no model of its own")
    _run(show, "chat", model, QUESTION, *ANSWER, "--node", asked)

    show.heading("The operator looks, from node 2")
    _run(show, "models", "--node", nodes[1].fields["http"])
    _run(show, "route", model, "--node", nodes[1].fields["http"])

    show.heading("Node 1 loses its power: kill -9")
    stage.kill(nodes[0])
    begun = time.monotonic()
    _run(show, "chat", model, QUESTION, *ANSWER, "--node", asked, fails=True)
    waited = time.monotonic() - begun
    show.fact(f"node 3 waits {waited:.1f} s for somebody to come back; then an honest error")
    with show.step("node 3 stops listing the model"):
        _until(lambda: model not in _models(asked), "node 3 still lists the model")

    show.heading("Node 1 comes back with the files it left: nobody registers again")
    with show.step("node 1 starts"):
        nodes[0] = stage.start_node("node1", bootstrap=[nodes[1].fields["p2p"]])
    with show.step("node 3 routes to it again"):
        _until(lambda: model in _models(asked), "node 3 did not hear of node 1 again")
    _run(show, "chat", model, "And what is a rumour?", *ANSWER, "--node", asked)

    if keep:
        _wait(show, nodes)
    show.heading("A clean stop")
    for actor in (*reversed(nodes), worker):
        with show.step(f"{actor.name} stops"):
            code = stage.stop(actor)
        if code != 0:
            raise StageError(f"{actor.name} ended with exit code {code}")


def _start(show: Show, stage: Stage) -> tuple[Actor, list[Actor]]:
    show.heading("Three nodes on this machine, and one worker that runs a language model")
    with ThreadPoolExecutor(max_workers=1) as beside:
        loading = beside.submit(stage.start, "worker", "node.demo.worker", "--port", "0")
        nodes: list[Actor] = []
        for number in (1, 2, 3):
            known = [nodes[0].fields["p2p"]] if nodes else []
            with show.step(f"node {number} starts"):
                nodes.append(stage.start_node(f"node{number}", bootstrap=known))
        with show.step("the worker loads its model"):
            worker = loading.result()
    if worker.fields["source"] == "random":
        show.note(
            "  no trained model is installed: a tiny random one answers, with noise for words"
        )
    return worker, nodes


def _run(show: Show, *words: str, fails: bool = False) -> None:
    """Run one command of ours with its output shown as it comes; `fails` says that it should end with an error."""
    show.command(*words)
    done = subprocess.run(
        [sys.executable, "-m", "node", *words],
        stdin=subprocess.DEVNULL,
        # One stream, so that what is said of an answer stands below it.
        stderr=sys.stdout,
        timeout=COMMAND_WITHIN,
        check=False,
    )
    if (done.returncode != 0) is not fails:
        raise StageError(f"`modelvine {words[0]}` ended with exit code {done.returncode}")


def _models(http: str) -> set[str]:
    with urllib.request.urlopen(f"{http}/v1/models", timeout=5) as answer:  # noqa: S310  (our own node)
        return {row["id"] for row in json.load(answer)["data"]}


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + SPREAD_WITHIN
    while not holds():
        if time.monotonic() > deadline:
            raise StageError(f"{otherwise} after {SPREAD_WITHIN:g} s")
        time.sleep(0.02)


def _wait(show: Show, nodes: list[Actor]) -> None:
    show.heading("The nodes stay up until Ctrl-C")
    for actor in nodes:
        show.note(f"  {actor.name}  {actor.fields['http']}  {actor.fields['p2p']}")
    try:
        while all(actor.process.poll() is None for actor in nodes):
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
    raise StageError("a node ended by itself")
