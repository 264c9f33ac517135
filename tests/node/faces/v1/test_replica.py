"""State of its replicas that a node reports to other nodes: to known nodes only, and no content of requests."""

import time
from dataclasses import replace

import orjson

from registry.records import Service
from router.openai.prefixes import Prefixes, prefixes_of
from router.peers.replica_question import PATH, PAUSE, ReplicaQuestions
from router.requests import Kind, Request
from router.select.candidates import Candidate
from tests.node.faces.assembly import told

SAID = [{"role": "user", "content": "word " * 2_000}]
LATER = [*SAID, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]


def asked(messages: list[dict[str, str]]) -> Request:
    fields = {"model": "tiny", "messages": messages}
    body = orjson.dumps(fields)
    prefixes = prefixes_of(fields, len(body))
    return Request("r", Kind.CHAT, "tiny", body, "application/json", prefixes=prefixes)


async def test_a_node_reports_the_prefix_its_worker_has_read_and_its_load(mesh, worker):
    await mesh.one.register(worker, capacity=4)
    questions = ReplicaQuestions(mesh.two.context.links, time.monotonic)
    candidate = Candidate(mesh.one.context.peer, Service("p", "tiny"))
    before = await questions.ask(asked(LATER), candidate)
    assert (before.read, before.load.slots) == (None, 4)
    body = {"model": "tiny", "messages": SAID}
    async with mesh.one.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
    after = await questions.ask(asked(LATER), candidate)
    assert after.read.size == asked(SAID).prefixes.size
    assert after.time.answers == 1


async def test_a_node_that_gives_no_report_is_not_asked_again_for_a_while(mesh, worker):
    await mesh.one.register(worker)
    now = 0.0
    questions = ReplicaQuestions(mesh.two.context.links, lambda: now)
    candidate = Candidate(mesh.one.context.peer, Service("p", "tiny"))
    for service in (Service("p", "other"), Service("q", "tiny"), Service("p", "tiny", "cid")):
        assert await questions.ask(asked(LATER), replace(candidate, service=service)) is None
    assert await questions.ask(asked(LATER), candidate) is None
    now += PAUSE
    nothing = replace(asked(LATER), prefixes=Prefixes(()))
    assert (await questions.ask(nothing, candidate)).read is None


async def test_callers_cannot_query_replicas(mesh):
    assert (await told(mesh.one.http.post(PATH, json={})))[0] == 404
