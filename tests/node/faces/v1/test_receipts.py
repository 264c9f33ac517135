"""Receipts over HTTP: both nodes of a hop write one for each successful answer, and agree to the token."""

import pytest

from node.auth.receipts import Side
from router.openai.usage import Usage
from tests.node.faces.assembly import TOKEN, told
from tests.node.faces.test_peer_access import speaking_as

RECEIPTS = "/api/v1/receipts"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "canary-prompt-77aa"}]}
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
ASKED = {
    "/v1/chat/completions": [
        CHAT,
        {**CHAT, "stream": True},
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
    ],
    "/v1/completions": [
        {"model": "tiny", "prompt": "hi"},
        {"model": "tiny", "prompt": "hi", "stream": True},
    ],
    "/v1/embeddings": [{"model": "tiny", "input": "hi"}],
}


async def compared(mesh):
    path = f"{RECEIPTS}/{mesh.one.identity.peer}/comparison"
    status, payload = await told(mesh.two.http.get(path, headers=OPERATOR))
    assert status == 200, payload
    return payload


async def ask(mesh):
    count = 0
    for path, bodies in ASKED.items():
        for body in bodies:
            async with mesh.two.http.post(path, json=body) as response:
                assert response.status == 200
                await response.read()
                count += 1
    return count


async def test_both_nodes_agree_to_the_token_on_every_answer(mesh, worker):
    await mesh.offers("asked", worker)
    count = await ask(mesh)
    comparison = await compared(mesh)
    assert (comparison["answers"], comparison["counts"], comparison["faults"]) == (
        count,
        {"differ": 0, "only_here": 0, "only_there": 0},
        [],
    )
    _, sums = await told(mesh.two.http.get(RECEIPTS, headers=OPERATOR))
    [row] = sums["receipts"]
    assert (row["peer"], row["side"], row["answers"]) == (mesh.one.identity.peer, "asked", count)
    assert row["tokens"] == comparison["tokens"] > 0
    # Nothing of the content is in them.
    pages = [*await mesh.one.context.receipt_log.pages(mesh.two.identity.peer)]
    assert "canary" not in repr(pages)


async def test_failed_and_local_answers_have_no_receipt(mesh, worker):
    asked_node = await mesh.offers("asked", worker)
    worker.fail(status=400)
    async with asked_node.http.post("/v1/chat/completions", json=CHAT) as response:
        assert response.status == 400
    worker.fail()
    async with mesh.one.http.post("/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200
    comparison = await compared(mesh)
    assert (
        comparison["answers"],
        comparison["counts"]["only_here"],
        comparison["counts"]["only_there"],
    ) == (
        0,
        0,
        0,
    )


async def test_a_difference_in_tokens_is_reported_with_its_request(mesh, worker):
    await mesh.offers("asked", worker)
    book = mesh.one.context.receipts
    book.add(Side.SERVED, mesh.two.identity.peer, "padded", "tiny", Usage(1, 900), 0.1)
    mesh.two.context.receipts.add(
        Side.ASKED, mesh.one.identity.peer, "padded", "tiny", Usage(1, 9), 0.1
    )
    comparison = await compared(mesh)
    assert comparison["differ"] == [{"request": "padded", "here": [1, 9], "there": [1, 900]}]


async def test_a_peer_reads_only_its_own_chain(mesh, worker):
    await mesh.offers("asked", worker)
    await ask(mesh)
    mesh.one.context.receipts.add(Side.SERVED, "somebody", "secret", "tiny", None, 0.1)
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        headers = {"x-modelvine-hop": mesh.two.identity.peer}
        status, body = await told(session.get(f"{RECEIPTS}/yours", headers=headers))
    assert (status, len(body["pages"])) == (200, 1)
    assert "secret" not in str(body)


@pytest.mark.parametrize("path", [RECEIPTS, f"{RECEIPTS}/x", f"{RECEIPTS}/x/comparison"])
async def test_only_operators_see_receipts(mesh, path):
    async with mesh.one.http.get(path, headers={"X-Forwarded-For": "192.0.2.1"}) as response:
        assert response.status == 403


async def test_comparing_with_an_unknown_node_is_404(mesh):
    status, _ = await told(mesh.one.http.get(f"{RECEIPTS}/nobody/comparison", headers=OPERATOR))
    assert status == 404
