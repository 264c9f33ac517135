"""Hostile bytes over HTTP: they get an error of ours that says what to do, or no answer; no worker sees them.

Over raw sockets, at the listener for clients and at the one for other nodes.
"""

import asyncio
import logging
from collections.abc import Mapping

import orjson
import pytest

from router.peers.tls import certificate_of, client_context
from tests.hostile.refused import ACCEPTED, EVERYWHERE, PUBLIC, Case
from tests.hostile.wire import Heard, Listener

AT_ONCE = 8


@pytest.fixture(params=["clients", "nodes"])
async def listener(request, mesh, worker):
    """Return a listener of a node with the model `tiny`; where a key is needed, the caller shows the other node's."""
    await mesh.one.register(worker)
    if request.param == "clients":
        host, port = mesh.one.context.listening.http.split(":")
        return Listener(host, int(port))
    context = client_context(mesh.two.identity, certificate_of(mesh.one.identity))
    return Listener("127.0.0.1", mesh.one.link, context, mesh.two.identity.peer)


async def _hear_all(listener: Listener, sent: Mapping[str, bytes]) -> dict[str, Heard]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def hear(piece: bytes) -> Heard:
        async with turns:
            return await listener.say(piece, within=30)

    return dict(zip(sent, await asyncio.gather(*map(hear, sent.values())), strict=True))


def _faults(cases: Mapping[str, Case], heard: Mapping[str, Heard]) -> dict[str, Heard]:
    return {name: heard[name] for name, (_, status) in cases.items() if not _as_it_should(heard[name], status)}  # fmt: skip


def _as_it_should(heard: Heard, status: int) -> bool:
    return heard.statuses == [status] and not heard.rest and _in_our_words(heard)


def _in_our_words(heard: Heard) -> bool:
    (answer,) = heard.answers
    if answer.headers["content-type"].partition(";")[0] != "application/json":
        return False
    payload = orjson.loads(answer.body)
    return (
        set(payload) == {"code", "message", "error"}
        and set(payload["error"]) == {"message", "type", "param", "code"}
        and payload["code"] >= 1000
        and len(payload["message"]) > 10
        and len(answer.body) < 2_000
        and answer.headers["server"] == "modelvine"
    )


async def test_invalid_requests_are_refused_with_their_status_and_reach_no_worker(
    listener, worker, caplog
):
    heard = await _hear_all(listener, {name: sent for name, (sent, _) in EVERYWHERE.items()})
    assert _faults(EVERYWHERE, heard) == {}
    assert worker.received == []
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.WARNING]


async def test_foreign_host_names_and_unknown_paths_are_refused(mesh, caplog):
    host, port = mesh.one.context.listening.http.split(":")
    listener = Listener(host, int(port))
    heard = await _hear_all(listener, {name: sent for name, (sent, _) in PUBLIC.items()})
    assert _faults(PUBLIC, heard) == {}
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.WARNING]


async def test_odd_but_valid_requests_are_answered(listener, worker):
    heard = await _hear_all(listener, ACCEPTED)
    assert {name: h for name, h in heard.items() if h.statuses != [200]} == {}
    assert len(worker.received) == len(ACCEPTED)


async def test_an_ambiguous_head_ends_its_connection(listener, worker):
    two_ways = ("coding: gzip first", "garbage: chunks in HTTP/1.0", "header: a length and chunks")
    behind = ACCEPTED["plain"]
    for name in two_ways:
        heard = await listener.say(EVERYWHERE[name][0] + behind, more=0.2)
        assert (heard.statuses, heard.closed) == ([400], True)
    assert worker.received == []


async def test_a_peer_that_does_not_speak_tls_gets_no_answer(mesh):
    listener = Listener("127.0.0.1", mesh.one.link)
    for sent in (ACCEPTED["plain"], b"\0" * 1_000, b"\x16\x03\x01\x00\x05hello"):
        heard = await listener.say(sent)
        assert heard.closed
        assert not heard.answers
