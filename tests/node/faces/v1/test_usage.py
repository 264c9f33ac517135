"""Usage over HTTP: operators see that of all keys, users that of their own."""

import csv
import io

import pytest

from node.auth.keys import Allowance
from node.auth.usage_row import UsageRow
from tests.node.faces.assembly import TOKEN, bearer, until
from tests.node.faces.test_quotas import ASKED, CHAT, tell

USAGE = "/api/v1/usage"


async def key_for(running, name, **limits):
    return bearer((await running.context.keys.create({name: Allowance(**limits)}))[name])


async def ask(running, headers, **fields):
    async with running.http.post(CHAT, json={**ASKED, **fields}, headers=headers) as response:
        await response.read()
        return response.status


async def usage(running, headers=None, **query):
    headers = headers or bearer(TOKEN)
    async with running.http.get(USAGE, params=query, headers=headers) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["usage"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_usage_is_counted_by_key_model_and_node(mesh, worker, stream):
    tell(worker)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    for asked in (mesh.one, mesh.two):
        ann = await key_for(asked, "ann")
        for _ in range(2):
            assert await ask(asked, ann, stream=stream) == 200
        await until(lambda asked=asked: asked.context.router.in_flight.total() == 0)
        [row] = await usage(asked)
        assert row["key"] == "ann"
        assert row["model"] == "tiny"
        assert row["node"] == mesh.one.context.peer
        assert (row["requests"], row["failed"], row["estimated"]) == (2, 0, 0)
        assert (row["prompt_tokens"], row["completion_tokens"]) == (60, 24)
        assert 0 < row["first_seconds"] <= row["seconds"] < 10


async def test_a_request_that_fails_is_counted_without_its_made_up_model(served):
    ann = await key_for(served, "ann", models=("tiny", "secret*"))
    assert await ask(served, ann, model="secret-words") == 404
    assert await ask(served, ann, model="other") == 403
    rows = await usage(served)
    assert [(row["model"], row["requests"], row["failed"]) for row in rows] == [("-", 2, 2)]


async def test_a_request_without_a_key_is_counted_without_a_name(served):
    assert await ask(served, {}) == 200
    [row] = await usage(served)
    assert (row["key"], row["requests"]) == ("-", 1)


async def test_a_user_sees_their_own_usage_and_an_operator_all(served):
    ann, bob = await key_for(served, "ann"), await key_for(served, "bob")
    operator = await key_for(served, "op", role="operator")
    for headers in (ann, bob, bob):
        assert await ask(served, headers) == 200
    assert [row["key"] for row in await usage(served, ann)] == ["ann"]
    assert [row["key"] for row in await usage(served, ann, key="bob")] == ["ann"]
    assert [row["key"] for row in await usage(served, operator)] == ["ann", "bob"]
    [row] = await usage(served, operator, key="bob")
    assert row["requests"] == 2
    far = {"X-Forwarded-For": "203.0.113.9"}
    async with served.http.get(USAGE, headers=far) as response:
        assert response.status == 403


async def test_usage_is_grouped_as_requested_and_comes_as_csv_too(served):
    for name in ("ann", "bob"):
        await ask(served, await key_for(served, name))
    [row] = await usage(served, by="model")
    assert (row["model"], row["requests"]) == ("tiny", 2)
    assert not {"day", "key", "node"} & set(row)
    params = {"by": "key", "format": "csv"}
    async with served.http.get(USAGE, params=params, headers=bearer(TOKEN)) as response:
        assert response.content_type == "text/csv"
        lines = (await response.text()).splitlines()
    assert lines[0].startswith("key,requests,failed,prompt_tokens")
    assert [line.split(",")[:2] for line in lines[1:]] == [["ann", "1"], ["bob", "1"]]


async def test_no_spreadsheet_takes_a_name_in_the_csv_for_a_formula(served):
    today = served.context.usage.today()
    names = ["=cmd|'/c calc'!A0", "@SUM(1)", "-1+1", "+1", "\tx", "-", "a=1"]
    for name in names:
        served.context.usage.add(UsageRow(today, "ann", name, "-", requests=1))
    params = {"by": "model", "format": "csv"}
    async with served.http.get(USAGE, params=params, headers=bearer(TOKEN)) as response:
        rows = [*csv.DictReader(io.StringIO(await response.text(), newline=""))]
    assert {row["model"] for row in rows} == {*(f"'{name}" for name in names[:5]), "-", "a=1"}
    assert {row["requests"] for row in rows} == {"1"}


@pytest.mark.parametrize("query", [{"since": "soon"}, {"until": "2026-13-01"}, {"by": "colour"}])
async def test_an_invalid_query_is_refused_by_parameter(served, query):
    async with served.http.get(USAGE, params=query, headers=bearer(TOKEN)) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == next(iter(query))


async def test_days_without_requests_are_empty(served):
    await ask(served, {})
    assert await usage(served, since="2020-01-01", until="2020-12-31") == []
