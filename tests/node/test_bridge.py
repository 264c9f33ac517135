"""A bridge: one face over one upstream, without a mesh."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import orjson
import pytest

from node import bridge
from node.bridge import Bridge, BridgePlan
from node.config.addresses import HostPort
from node.config.settings import Settings
from node.faces.errors import FaceError
from router.rpc.messages import LOCALAI, REMOTELLM
from router.settings import RouterSettings
from tests.node.faces.grpc.conftest import Client
from tests.workers import remotellm_worker, tgi_worker
from tests.workers.openai_worker import WORDS

ANYWHERE = HostPort("127.0.0.1", 0)
SAID = "".join(WORDS)
SETTINGS = Settings(router=RouterSettings(connect_timeout=1, ready_timeout=0))


@pytest.fixture
async def opened():
    async with AsyncExitStack() as closing:

        async def open_(dialect, upstream, *models, headers=None):
            bridge = Bridge(BridgePlan(dialect, upstream, ANYWHERE, models, headers), SETTINGS)
            return await bridge.open(closing), bridge

        yield open_


async def ask(address, path, body, **headers):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}{path}", json=body, headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None)


async def test_clients_of_tgi_are_answered_at_the_root(opened, worker):
    address, bridge = await opened("tgi", worker.url, "tiny")
    fields = {"inputs": "Once"}
    _, [first] = await ask(address, "/", fields)
    _, second = await ask(address, "/generate", fields)
    assert first["generated_text"] == second["generated_text"] == SAID
    chat = {"model": "tgi", "messages": [{"role": "user", "content": "hi"}]}
    status, answer = await ask(address, "/v1/chat/completions", chat)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, SAID)
    assert orjson.loads(worker.received[-1].body)["model"] == "tiny"
    assert bridge.in_flight == 0


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
async def test_models_are_listed_where_clients_ask_for_them(opened, worker, dialect):
    address, _ = await opened(dialect, worker.url, "tiny", "org/large")
    async with aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/v1/models") as response:
            assert {row["id"] for row in (await response.json())["data"]} == {"tiny", "org/large"}
        async with session.get("/v1/models/org/large") as response:
            assert (await response.json())["id"] == "org/large"
        async with session.get("/v1/models/none") as response:
            assert response.status == 404
        headers = {"anthropic-version": "2023-06-01"}
        async with session.get("/v1/models", headers=headers) as response:
            assert (await response.json())["first_id"] == "org/large"


async def test_a_bridge_serves_nothing_but_its_face(opened, worker):
    address, _ = await opened("tgi", worker.url, "tiny")
    assert (await ask(address, "/api/v0/ai/project/register", {}))[0] == 404


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("llamastack", "/inference", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
        ("anthropic", "/v1/messages", {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}),
        ("responses", "/v1/responses", {"model": "tiny", "input": "a"}),
        ("openai", "/v1/completions", {"model": "tiny", "prompt": "a"}),
    ],
)  # fmt: skip
async def test_every_other_protocol_over_http_is_bridged(opened, worker, dialect, path, body):
    address, _ = await opened(dialect, worker.url, "tiny")
    status, answer = await ask(address, path, body)
    assert status == 200
    assert SAID in orjson.dumps(answer).decode()


@pytest.mark.parametrize(
    ("dialect", "service", "rpc", "asked"),
    [
        ("localai", LOCALAI, "Predict", {"Prompt": "a"}),
        ("remotellm", REMOTELLM, "Generate", {"prompts": ["a"]}),
    ],
)
async def test_protocols_over_grpc_are_bridged(opened, worker, dialect, service, rpc, asked):
    address, _ = await opened(dialect, worker.url, "tiny")
    client = Client(service, address)
    assert SAID in str(await client.ask(rpc, **asked))
    await client.close()


async def test_a_bridge_without_named_models_offers_those_of_its_upstream(opened):
    async with remotellm_worker.running() as worker:
        url = worker.url.replace("grpc:", "grpc+remotellm:")
        address, bridge = await opened("openai", url)
        assert bridge.models == ["gpt-neo"]
        status, _ = await ask(address, "/v1/completions", {"model": "gpt-neo", "prompt": "a"})
    assert status == 200


async def test_an_upstream_may_speak_any_protocol(opened):
    async with tgi_worker.running() as worker:
        address, _ = await opened("anthropic", worker.url.replace("http:", "tgi+http:"), "tiny")
        body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
        status, answer = await ask(address, "/v1/messages", body)
    assert (status, answer["content"][0]["text"]) == (200, SAID)


async def test_the_operators_key_is_sent_upstream_and_the_callers_key_is_not(opened, worker):
    address, _ = await opened(
        "openai", worker.url, "tiny", headers={"authorization": "Bearer ours"}
    )
    body = {"model": "tiny", "prompt": "a"}
    assert (await ask(address, "/v1/completions", body, authorization="Bearer theirs"))[0] == 200
    assert worker.received[-1].headers["authorization"] == "Bearer ours"


async def test_the_death_of_an_upstream_is_reported_as_an_error_of_the_protocol(opened, worker):
    address, _ = await opened("tgi", worker.url, "tiny")
    worker.fail(die_before_headers=True)
    status, answer = await ask(address, "/generate", {"inputs": "Once"})
    assert (status, answer["error_type"]) == (424, "generation")


async def test_callers_do_not_wait_for_an_upstream_that_never_was_there(caplog):
    patient = Settings(router=RouterSettings(connect_timeout=1, ready_timeout=60))
    async with AsyncExitStack() as closing:
        bridge = Bridge(BridgePlan("tgi", "http://127.0.0.1:1", ANYWHERE, ("tiny",)), patient)
        address = await bridge.open(closing)
        async with asyncio.timeout(20):
            status, answer = await ask(address, "/generate", {"inputs": "Once"})
    assert (status, answer["error_type"]) == (429, "overloaded")
    assert "no answer from http://127.0.0.1:1: nothing listens there;" in caplog.text


async def test_a_bridge_that_ends_answers_its_kept_connections_once_more_and_takes_no_others(
    opened, worker
):
    address, bridge = await opened("openai", worker.url, "tiny")
    async with aiohttp.ClientSession(f"http://{address}") as session:
        for expected in ("kept", "close"):
            async with session.post("/v1/chat/completions", json={"model": "tiny"}) as response:
                assert response.status == 200
                assert response.headers.get("Connection", "kept") == expected
                await response.read()
            await bridge.stop_accepting()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("/v1/models")


async def test_an_upstream_that_lists_no_models_needs_one_named_by_the_operator(opened):
    with pytest.raises(OSError, match="--model"):
        await opened("tgi", "http://127.0.0.1:1")
    _, bridge = await opened("tgi", "http://127.0.0.1:1", "named")
    assert bridge.models == ["named"]


@pytest.mark.parametrize(
    "upstream", ["ftp://x", "nonsense", "http://192.0.2.1:8080", "http://u:p@127.0.0.1"]
)
async def test_an_invalid_or_forbidden_upstream_address_is_refused(opened, upstream):
    with pytest.raises(FaceError):
        await opened("tgi", upstream, "tiny")


def test_every_protocol_of_these_faces_can_be_bridged():
    assert set(bridge.NAMES) >= {
        "anthropic",
        "llamastack",
        "localai",
        "remotellm",
        "responses",
        "tgi",
    }
