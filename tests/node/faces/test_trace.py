"""Ids and traces of requests: the same at every hop, at the worker and in every log line."""

import logging

import pytest

from registry.records import Reach
from router.peers.tls import certificate_of
from tests.node.faces.assembly import until

PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": []}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
TRACED = {"traceparent": PARENT, "tracestate": STATE}


async def addressed_by_loopback(mesh):
    """Have both nodes announce loopback addresses alone, so that these are tried before pipes."""
    for node in (mesh.one, mesh.two):
        link, certificate = node.context.listening.link, certificate_of(node.identity)
        await node.context.registry.change_addresses(Reach(links=(link,), certificate=certificate))
    registry, peer = mesh.one.context.registry, mesh.two.context.peer
    await until(lambda: not registry.catalog.held[peer].record.reach.mesh)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "over a pipe"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_id_and_trace_are_the_same_over_two_nodes(mesh, worker, caplog, direct, stream):
    await mesh.two.register(worker)
    await mesh.knows(mesh.one, "tiny")
    if direct:
        await addressed_by_loopback(mesh)
    headers = {**TRACED, "x-request-id": "my-id_1.x"}
    body = CHAT | {"stream": stream}
    with caplog.at_level(logging.INFO):
        async with mesh.one.http.post(PATH, json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
            assert response.headers["x-request-id"] == "my-id_1.x"
        await until(lambda: sum("my-id_1.x" in r.getMessage() for r in caplog.records) == 2)
    received = worker.received[-1].headers
    assert received["x-request-id"] == "my-id_1.x"
    assert (received["traceparent"], received["tracestate"]) == (PARENT, STATE)
    lines = [r.getMessage() for r in caplog.records if r.name == "modelvine.requests"]
    assert all(line.startswith("request=my-id_1.x model=tiny ") for line in lines)


@pytest.mark.parametrize(
    "parent", ["00-1-2-01", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "x" * 5_000]
)
async def test_an_invalid_trace_is_dropped(served, worker, parent):
    headers = {"traceparent": parent, "tracestate": STATE}
    async with served.http.post(PATH, json=CHAT, headers=headers) as response:
        assert response.status == 200
    assert not {"traceparent", "tracestate"} & {
        name.lower() for name in worker.received[-1].headers
    }


@pytest.mark.parametrize("given", ["x" * 65, "a b", "a;b", "ü", "a\tb", ""])
async def test_an_invalid_request_id_is_replaced(served, worker, given):
    headers = {"x-request-id": given}
    async with served.http.post(PATH, json=CHAT, headers=headers) as response:
        assert response.status == 200
        request_id = response.headers["x-request-id"]
    assert request_id != given
    assert len(request_id) == 32
    assert worker.received[-1].headers["x-request-id"] == request_id
