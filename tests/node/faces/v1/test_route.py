"""Explanation of a route: the candidates that a request would have, and the reasons."""

import logging

import orjson
import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of, told, until

SECRET = "the canary sings at noon"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": SECRET * 100}]}


class TestARoute:
    async def test_names_the_candidates_in_order_and_why(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.two.register(worker, project="q")
        await mesh.knows(mesh.two, "p/tiny")
        _, body = await told(mesh.two.http.get("/api/v1/route?model=tiny"))
        assert (body["model"], body["policy"]) == ("tiny", "p2c")
        assert [entry["chosen"] for entry in body["candidates"]] == [True, False]
        routes = {entry["node"]: entry["route"] for entry in body["candidates"]}
        assert routes == {mesh.two.context.peer: "local", mesh.one.context.peer: "direct"}
        assert body["candidates"][0].keys() == {
            "node",
            "name",
            "project",
            "model",
            "cid",
            "type",
            "context",
            "route",
            "in_flight",
            "load",
            "score",
            "figures",
            "chosen",
            "why",
            "circuit",
        }
        assert body["candidates"][0]["circuit"] == {
            "state": "closed",
            "failures": 0,
            "retry_in": 0.0,
        }
        assert worker.received == []

    async def test_names_the_excluded_replicas_and_why(self, mesh, worker):
        await mesh.one.register(worker)
        await mesh.two.register(worker, project="q")
        await mesh.knows(mesh.two, "p/tiny")
        _, body = await told(mesh.two.http.get("/api/v1/route?model=tiny&project=q"))
        assert [entry["project"] for entry in body["candidates"]] == ["q"]
        (excluded,) = body["excluded"]
        assert (excluded["project"], excluded["reason"]) == ("p", "the caller requested another")

    @pytest.mark.parametrize(
        ("query", "status", "code"),
        [
            ("", 400, "invalid_parameter"),
            ("?model=", 400, "invalid_parameter"),
            ("?model=unknown", 404, "model_not_found"),
            ("?model=m&node=x", 404, "node_not_found"),
            ("?model=m&node=no%20name", 400, "invalid_parameter"),
            ("?model=m&kind=prophecies", 400, "invalid_parameter"),
        ],
    )
    async def test_of_an_invalid_or_unknown_model_node_or_kind_is_an_error(
        self, alone, query, status, code
    ):
        answered, body = await told(alone.http.get(f"/api/v1/route{query}"))
        assert (answered, body["error"]["code"]) == (status, code)


class TestARequest:
    """`POST /api/v1/route`: takes the body and the headers of a request to `/v1`."""

    @pytest.fixture
    async def three(self, worker):
        async with node(World(MemoryNet()), settings_of()) as running:
            for cid in ("a", "b", "c"):
                await running.register(worker, cid=cid)
            yield running

    async def test_is_explained_as_it_would_be_routed_and_reaches_no_worker(self, three, worker):
        async def candidates():
            _, body = await told(three.http.post("/api/v1/route", json=CHAT))
            return body["candidates"]

        assert not any("it read" in c["why"] for c in await candidates())
        assert worker.received == []
        async with three.http.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200
        [reader] = [c for c in await candidates() if "it read" in c["why"]]
        assert reader["figures"]["read_kilobytes"] == reader["figures"]["kilobytes"] > 2
        assert len(worker.received) == 1

    async def test_may_be_pinned_belong_to_a_session_and_be_of_another_kind(self, three):
        headers = {"x-modelvine-cid": "b", "x-modelvine-session": "s"}
        call = three.http.post("/api/v1/route?kind=embeddings", json=CHAT, headers=headers)
        _, body = await told(call)
        assert [c["cid"] for c in body["candidates"]] == ["b"]
        assert [x["cid"] for x in body["excluded"]] == ["a", "c"]

    @pytest.mark.parametrize(
        ("body", "status"),
        [(b"{", 400), (b"[]", 400), (b'{"messages":[]}', 400), (b'{"model":"unknown"}', 404)],
    )
    async def test_that_v1_would_refuse_is_refused_alike(self, alone, body, status):
        sent = {"data": body, "headers": {"content-type": "application/json"}}
        _, payload = await told(alone.http.post("/v1/chat/completions", **sent))
        answered, explained = await told(alone.http.post("/api/v1/route", **sent))
        assert answered == status
        assert (explained["error"]["code"], explained["error"]["message"]) == (
            payload["error"]["code"],
            payload["error"]["message"],
        )

    async def test_with_several_models_is_explained_by_the_first_that_is_served(self, three):
        listed = {"models": ["nobody", "tiny", "small"], "messages": CHAT["messages"]}
        _, body = await told(three.http.post("/api/v1/route", json=listed))
        assert (body["model"], body["fallbacks"]) == ("tiny", ["small"])
        status, _ = await told(three.http.post("/api/v1/route", json={"models": ["a", "b"]}))
        assert status == 404

    async def test_is_neither_logged_nor_shown(self, three, caplog):
        caplog.set_level(logging.DEBUG)
        async with three.http.post("/api/v1/route", json=CHAT) as response:
            assert SECRET.encode() not in await response.read()
        _, status = await told(three.http.get("/api/v1/status"))
        metrics = await (await three.http.get("/metrics")).text()
        assert SECRET not in caplog.text + metrics + orjson.dumps(status).decode()


class TestASession:
    async def test_has_a_home_which_the_explanation_names(self, worker):
        async with node(World(MemoryNet()), settings_of(policy="session")) as running:
            for cid in ("a", "b", "c"):
                await running.register(worker, cid=cid)
            of = {"x-modelvine-session": "s"}
            _, body = await told(running.http.get("/api/v1/route?model=tiny", headers=of))
        assert "the session's machine" in body["candidates"][0]["why"]
        assert [c["figures"] for c in body["candidates"]] == [{"place": n} for n in range(3)]

    async def test_is_named_by_header_or_by_openais_prompt_cache_key(self, worker):
        async with node(World(MemoryNet()), settings_of(policy="session")) as running:
            for cid in ("a", "b", "c", "d"):
                await running.register(worker, cid=cid)

            async def home(body, **headers):
                _, payload = await told(
                    running.http.post("/api/v1/route", json=body, headers=headers)
                )
                return payload["candidates"][0]["cid"], payload["candidates"][0]["why"]

            for name in ("s", "t", "u"):
                cid, reason = await home(CHAT | {"prompt_cache_key": name})
                assert "the session's machine" in reason
                assert await home(CHAT, **{"x-modelvine-session": name}) == (cid, reason)
            for none in ({"prompt_cache_key": 7}, {"prompt_cache_key": ""}, {}):
                assert "p2c" in (await home(CHAT | none))[1]


async def test_a_new_replica_with_enough_requests_comes_last_with_the_reason(alone, worker):
    worker.fail(delay_between=60)
    for cid in ("a", "b"):
        await alone.register(worker, cid=cid)
    stream = {**CHAT, "stream": True}
    async with alone.http.post(
        "/v1/chat/completions", json=stream, headers={"x-modelvine-cid": "a"}
    ) as held:
        await held.content.readuntil(b"\n\n")
        _, body = await told(alone.http.get("/api/v1/route?model=tiny"))
        held.close()
    assert [c["cid"] for c in body["candidates"]] == ["b", "a"]
    assert "new here and has 1 of our requests, of 1" in body["candidates"][1]["why"]


async def test_a_replica_with_too_short_a_context_is_excluded_with_the_figures(mesh, worker):
    await mesh.one.register(worker, context=500)
    await mesh.two.register(worker, context=4096)
    await mesh.knows(mesh.two, "tiny")
    await until(lambda: len(mesh.two.context.registry.catalog.offers["tiny"]) == 2)
    long = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 1_000}]}
    _, body = await told(mesh.two.http.post("/api/v1/route", json=long))
    assert [(c["route"], c["context"]) for c in body["candidates"]] == [("local", 4096)]
    assert [x["reason"] for x in body["excluded"]] == [
        "its context is too short: 500 < about 625 tokens"
    ]
