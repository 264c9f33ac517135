"""Audit log of changes over HTTP: the key or user, the action and its target; never a secret."""

from node.auth.keys import Allowance
from tests.node.faces.assembly import TOKEN, bearer

AUDIT = "/api/v1/audit"


async def post(running, path, body=None, headers=None):
    async with running.http.post(path, json=body or {}, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def audit(running, **query):
    async with running.http.get(AUDIT, params=query, headers=bearer(TOKEN)) as response:
        assert response.status == 200
        payload = await response.json()
    assert payload["faults"] == []
    return [(row["who"], row["action"], row["target"]) for row in payload["audit"]]


async def test_every_change_is_logged_with_the_key_or_user_that_made_it(alone, worker):
    secret = (await alone.context.keys.create({"op": Allowance(role="operator")}))["op"]
    operator, token = bearer(secret), bearer(TOKEN)
    made = await post(alone, "/api/v1/keys", {"keys": [{"name": "ann"}]}, operator)
    await post(alone, "/api/v1/keys/ann/rotate", headers=token)
    await post(alone, "/api/v1/keys/ann/revoke", headers=token)
    await post(alone, "/api/v1/drain", headers=operator)
    await post(alone, "/api/v1/undrain")
    headers = {"authorization": "Bearer canary-worker"}
    row = {"project": "p", "model": "tiny", "api": worker.url, "headers": headers}
    await post(alone, "/api/v0/ai/model/register", row)
    model = {"project": "p", "model": "tiny"}
    await post(alone, "/api/v0/ai/model/unregister", model)
    body = {"project": "q", "models": [{"model": "m", "api": worker.url}]}
    await post(alone, "/api/v0/ai/project/register", body)
    await post(alone, "/api/v0/ai/project/unregister", {"project": "q"})
    found = await audit(alone)
    local = found[4][0]
    assert local.startswith("user ")
    assert found == [
        ("op", "create keys", "ann"),
        ("control.token", "rotate key", "ann"),
        ("control.token", "revoke key", "ann"),
        ("op", "drain", ""),
        (local, "undrain", ""),
        (local, "register model", "p/tiny"),
        (local, "unregister model", "p/tiny"),
        (local, "register project", "q"),
        (local, "unregister project", "q"),
    ]
    for word in (made["keys"][0]["key"], secret, TOKEN, "canary-worker", worker.url):
        assert word not in str(found)
    assert await audit(alone, number="2") == found[-2:]


async def test_refused_changes_are_not_logged(alone):
    far = {"X-Forwarded-For": "203.0.113.9"}
    async with alone.http.post("/api/v1/drain", headers=far) as response:
        assert response.status == 403
    async with alone.http.post("/api/v1/keys", json={"keys": []}) as response:
        assert response.status == 400
    assert await audit(alone) == []


async def test_the_audit_log_is_for_operators(alone):
    made = await alone.context.keys.create({"v": Allowance(role="viewer"), "u": Allowance()})
    for secret in made.values():
        async with alone.http.get(AUDIT, headers=bearer(secret)) as response:
            assert response.status == 403
