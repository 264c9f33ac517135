"""`/api/v1/examination`: a node checks its own workers, store and neighbours, for operators alone."""

import time

import pytest

from node.auth.keys import Allowance
from node.config.settings import NodeSettings
from node.faces.v1.examination import MOST_AHEAD, offset
from registry.errors import StoreUnavailable
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of, told
from tests.workers import openai_worker

PATH = "/api/v1/examination"


async def examined(running):
    status, payload = await told(running.http.get(PATH))
    assert status == 200, payload
    return payload


async def test_workers_are_checked_and_their_protocols_detected(alone):
    async with openai_worker.running() as one, openai_worker.running() as two:
        await alone.register(one, model="well", capacity=3)
        await alone.register(two, model="other", dialect="tgi_http")
        dead = {
            "project": "p",
            "model": "dead",
            "api": "http://127.0.0.1:1/v1?key=canary",
            "headers": {"authorization": "canary"},
        }
        assert (await told(alone.http.post("/api/v0/ai/model/register", json=dead)))[0] == 200
        payload = await examined(alone)
    rows = {row["model"]: row for row in payload["workers"]}
    assert (rows["well"]["answers"], rows["well"]["speaks"], rows["well"]["slots"]) == (
        True,
        "openai_http",
        3,
    )
    assert (rows["other"]["dialect"], rows["other"]["speaks"]) == ("tgi_http", "openai_http")
    assert (rows["dead"]["answers"], rows["dead"]["health"]) == (False, "never answered")
    assert "canary" not in str(payload)


async def test_the_store_is_checked_by_a_write_and_a_read(alone):
    store = (await examined(alone))["store"]
    assert (store["error"], store["seconds"] < 1) == ("", True)

    async def full(*_):
        raise StoreUnavailable("m.db: No space left on device")

    alone.store.write = full
    assert (await examined(alone))["store"]["error"] == "m.db: No space left on device"


async def test_the_path_of_the_data_directory_need_not_be_utf8():
    odd = NodeSettings(data_dir="/data/\udcff")
    async with node(World(MemoryNet()), settings_of().model_copy(update={"node": odd})) as running:
        assert (await examined(running))["process"]["data_dir"] == "/data/\ufffd"


async def test_another_nodes_clock_and_reachability_are_checked(mesh):
    (row,) = (await examined(mesh.one))["peers"]
    assert (row["node"], row["answers"], row["why"]) == (mesh.two.context.peer, True, "")
    assert abs(row["clock"]) < 1


async def test_the_examination_describes_this_process(alone):
    payload = await examined(alone)
    assert payload["process"]["open_files"] > 3
    assert payload["process"]["open_files_limit"] >= payload["process"]["open_files"]
    assert payload["relay"]["serves"] is False
    assert (payload["keys"], payload["peers"], payload["workers"]) == (0, [], [])


async def test_the_examination_is_for_operators(alone):
    made = await alone.context.keys.create({"v": Allowance(role="viewer"), "u": Allowance()})
    for secret in made.values():
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await told(alone.http.get(PATH, headers=headers)))[0] == 403
    assert (await told(alone.http.get(PATH, headers={"X-Forwarded-For": "203.0.113.9"})))[0] == 403


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"time":"now"}', b'{"time":null}'])
def test_an_invalid_time_of_a_node_is_ignored(said):
    assert offset(said, 0.0, 0.0) is None


def test_half_of_the_round_trip_is_subtracted_from_the_clock_offset():
    assert offset(b'{"time":100.5}', 90.0, 1.0) == 10.0
    assert offset(b'{"time":1e308}', time.time(), 0.0) == MOST_AHEAD
