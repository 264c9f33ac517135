"""Keys of users and invitations over HTTP: operators make them, and every face requires or admits them."""

from dataclasses import replace

import pytest

from node.auth import invitation
from node.auth.keys import Allowance
from tests.node.faces.assembly import TOKEN, bearer

KEYS = "/api/v1/keys"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
BODIES = {
    "/v1/chat/completions": ASKED,
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": ASKED,
    "/tgi/p/tiny/generate": {"inputs": "hi"},
    "/inference/chat_completion": {"model": "tiny", "messages": ASKED["messages"]},
    "/api/v0/chat/completion/proxy": {"project": "p", **ASKED},
}


async def key_for(node_, name="ann", **limits):
    return (await node_.context.keys.create({name: Allowance(**limits)}))[name]


async def said(call):
    async with call as response:
        return response.status, await response.json(content_type=None)


def code_of(body):
    error = body["error"]
    return error.get("code") if isinstance(error, dict) else body["error_type"]


@pytest.mark.parametrize("path", BODIES)
async def test_every_face_requires_a_key(closed, worker, path):
    for headers in ({}, bearer("mv_wrong"), bearer("sk-any"), {"x-api-key": "no"}):
        status, body = await said(closed.http.post(path, json=BODIES[path], headers=headers))
        assert status == 401, body
    key = await key_for(closed)
    for headers in (bearer(key), {"x-api-key": key}):
        status, body = await said(closed.http.post(path, json=BODIES[path], headers=headers))
        assert status == 200, body
    assert all(key not in str(request.headers) for request in worker.received)


@pytest.mark.parametrize("path", BODIES)
async def test_a_key_opens_its_models_only(closed, path):
    key = await key_for(closed, models=("llama*",))
    status, body = await said(closed.http.post(path, json=BODIES[path], headers=bearer(key)))
    assert status == 403, body
    async with closed.http.get("/v1/models", headers=bearer(key)) as response:
        assert (await response.json())["data"] == []
    async with closed.http.get("/v1/models/tiny", headers=bearer(key)) as response:
        assert response.status == 404


async def test_a_key_for_one_project_is_shown_names_that_it_may_use(closed):
    headers = bearer(await key_for(closed, models=("p/*",)))
    async with closed.http.get("/v1/models", headers=headers) as response:
        (row,) = (await response.json())["data"]
    assert (row["id"], row["model"]) == ("p/tiny", "tiny")
    for name, status in (("tiny", 404), ("p/tiny", 200)):
        async with closed.http.get(f"/v1/models/{name}", headers=headers) as response:
            assert response.status == status
    for fields, status in (
        ({}, 403),
        ({"model": "p/tiny"}, 200),
        ({"project": "p"}, 200),
        ({"project": "q"}, 403),
    ):
        call = closed.http.post("/v1/chat/completions", json={**ASKED, **fields}, headers=headers)
        answer = await said(call)
        assert answer[0] == status, (fields, answer)


async def test_every_name_in_the_list_of_models_is_checked(closed):
    key = await key_for(closed, models=("llama*",))
    both = {**ASKED, "model": "llama", "models": ["tiny"]}
    status, body = await said(
        closed.http.post("/v1/chat/completions", json=both, headers=bearer(key))
    )
    assert (status, code_of(body)) == (403, "model_not_allowed")


async def test_refusals_have_the_form_of_their_face(closed):
    async with closed.http.post("/v1/chat/completions", json=ASKED) as response:
        assert response.headers["www-authenticate"] == "Bearer"
        assert (await response.json())["error"]["code"] == "key_missing"
    _, body = await said(closed.http.post("/v1/messages", json=ASKED))
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    _, body = await said(closed.http.post("/tgi/p/tiny/generate", json={"inputs": "a"}))
    assert body["error_type"] == "authentication"


@pytest.mark.parametrize(
    ("role", "asks", "looks", "changes"),
    [("user", 200, 403, 403), ("viewer", 403, 200, 403), ("operator", 200, 200, 200)],
)
async def test_a_role_limits_what_a_key_may_do(closed, role, asks, looks, changes):
    headers = bearer(await key_for(closed, role=role))
    ask = closed.http.post("/v1/chat/completions", json=ASKED, headers=headers)
    assert (await said(ask))[0] == asks
    for path in ("/api/v1/nodes", "/api/v1/status", "/metrics"):
        async with closed.http.get(path, headers=headers) as response:
            assert response.status == looks, path
    for call in (
        closed.http.post("/api/v1/undrain", headers=headers),
        closed.http.get(KEYS, headers=headers),
        closed.http.post(KEYS, headers=headers, json={"keys": [{"name": "new"}]}),
    ):
        assert (await said(call))[0] == changes


async def test_load_balancers_need_no_key(closed):
    for path in ("/healthz", "/readyz"):
        for headers in ({}, bearer("mv_wrong")):
            async with closed.http.get(path, headers=headers) as response:
                assert response.status == 200


async def test_keys_are_created_listed_rotated_and_revoked(closed):
    closed.http.headers.update(bearer(TOKEN))
    limits = [{"model": "t*", "rpm": 60, "tpm": 0, "tokens_per_day": 0, "concurrency": 0}]
    ann = {"name": "ann", "models": ["tiny"], "expires_in": 3600, "model_limits": limits}
    rows = [ann, {"name": "bob"}]
    status, made = await said(closed.http.post(KEYS, json={"keys": rows}))
    assert status == 200, made
    ann, bob = (row["key"] for row in made["keys"])
    _, listed = await said(closed.http.get(KEYS))
    assert [(k["name"], k["state"], k["models"]) for k in listed["keys"]] == [
        ("ann", "active", ["tiny"]),
        ("bob", "active", []),
    ]
    assert [k["model_limits"] for k in listed["keys"]] == [limits, []]
    assert not any(word in str(listed) for word in (ann, bob, "hash", TOKEN))
    _, again = await said(closed.http.post(f"{KEYS}/ann/rotate"))
    assert (await said(closed.http.post(f"{KEYS}/bob/revoke")))[0] == 200
    chat = "/v1/chat/completions"
    for key, code in (
        (ann, "invalid_api_key"),
        (bob, "key_revoked"),
        (again["keys"][0]["key"], None),
    ):
        status, body = await said(closed.http.post(chat, json=ASKED, headers=bearer(key)))
        assert (status == 200) if code is None else (code_of(body) == code)
    # A rotated key keeps the limits of the old one.
    assert closed.context.keys.table.by_name["ann"].model_limits[0].rpm == 60


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "keys"),
        ({"keys": []}, "keys"),
        ({"keys": [{}]}, "keys.0.name"),
        ({"keys": [{"name": "a b"}]}, "is not a valid name"),
        ({"keys": [{"name": "a", "color": 1}]}, "keys.0.color"),
        ({"keys": [{"name": "a", "role": "king"}]}, "keys.0.role"),
        ({"keys": [{"name": "a"}, {"name": "a"}]}, "occurs twice"),
        ({"keys": [{"name": "a", "expires": 9e9, "expires_in": 5}]}, "not both"),
        ({"keys": [{"name": "a", "expires_in": -1}]}, "keys.0.expires_in"),
        (
            {"keys": [{"name": "a", "model_limits": [{"model": "m", "rmp": 1}]}]},
            "keys.0.model_limits.0.rmp",
        ),
        ({"keys": [{"name": "a", "model_limits": [{"rpm": 1}]}]}, "keys.0.model_limits.0.model"),
    ],
)
async def test_an_invalid_key_is_refused_by_field(closed, body, words):
    status, answer = await said(closed.http.post(KEYS, json=body, headers=bearer(TOKEN)))
    assert status == 400
    assert words in answer["message"]
    assert closed.context.keys.keys == []


async def test_a_taken_name_is_409_and_an_unknown_one_404(closed):
    await key_for(closed)
    headers = bearer(TOKEN)
    status, _ = await said(
        closed.http.post(KEYS, json={"keys": [{"name": "ann"}]}, headers=headers)
    )
    assert status == 409
    for verb in ("rotate", "revoke"):
        assert (await said(closed.http.post(f"{KEYS}/bob/{verb}", headers=headers)))[0] == 404


GRANTS = "/api/v1/grants"
CHAT = "/v1/chat/completions"


async def invited(node_, **fields):
    call = node_.http.post(GRANTS, json=fields, headers=bearer(TOKEN))
    status, body = await said(call)
    assert status == 200, body
    return body


async def test_an_invitation_is_a_key_with_its_terms(closed):
    made = await invited(closed, name="ann", models=["tiny"], rpm=1, expires_in=60)
    key = bearer(made["invitation"])
    async with closed.http.post(CHAT, json=ASKED, headers=key) as response:
        assert response.status == 200
        assert response.headers["x-ratelimit-limit-requests"] == "1"
    status, body = await said(closed.http.post(CHAT, json=ASKED, headers=key))
    assert (status, code_of(body)) == (429, "rate_limit_exceeded")
    status, body = await said(closed.http.post(CHAT, json={**ASKED, "model": "big"}, headers=key))
    assert (status, code_of(body)) == (403, "model_not_allowed")
    status, body = await said(closed.http.post(GRANTS, json={}, headers=key))
    assert (status, code_of(body)) == (403, "role_not_allowed")


async def test_an_invitation_holds_mesh_addresses_and_its_terms(closed):
    made = await invited(closed, models=["tiny"], passes=2, nodes=[closed.identity.peer])
    parsed = invitation.read(made["invitation"])
    assert (
        parsed.addresses
        == closed.context.registry.own_record.reach.mesh[: invitation.MAX_ADDRESSES]
    )
    terms = parsed.grant.blocks[0].terms
    assert (terms.models, terms.passes, terms.nodes) == (("tiny",), 2, (closed.identity.peer,))
    assert terms.expires == made["expires"]
    assert made["name"].startswith("guest-")


async def test_an_invitation_for_a_node_that_only_its_machine_can_reach_has_a_warning(closed):
    registry = closed.context.registry
    near = ("/ip4/127.0.0.1/tcp/6101", "/ip6/::1/tcp/6101")
    await registry.change_addresses(replace(registry.own_record.reach, mesh=near))
    made = await invited(closed, name="gpu", for_node=True)
    assert ["--profile lan" in warning for warning in made["warnings"]] == [True]
    assert (await invited(closed, name="ann"))["warnings"] == []
    await registry.change_addresses(
        replace(registry.own_record.reach, mesh=(*near, "/ip4/192.0.2.7/tcp/6101"))
    )
    assert (await invited(closed, name="two", for_node=True))["warnings"] == []


async def test_an_invitation_is_listed_and_revoked_with_the_keys(closed):
    made = await invited(closed, name="ann")
    _, listed = await said(closed.http.get(KEYS, headers=bearer(TOKEN)))
    [row] = listed["keys"]
    assert (row["name"], row["state"], row["issuer"]) == ("ann", "active", closed.identity.peer)
    assert made["invitation"].split(".")[0] not in str(listed)
    await said(closed.http.post(f"{KEYS}/ann/revoke", headers=bearer(TOKEN)))
    status, body = await said(
        closed.http.post(CHAT, json=ASKED, headers=bearer(made["invitation"]))
    )
    assert (status, code_of(body)) == (401, "key_revoked")


async def test_a_truncated_invitation_is_refused_with_advice(closed):
    made = await invited(closed, name="ann")
    status, body = await said(
        closed.http.post(CHAT, json=ASKED, headers=bearer(made["invitation"].split(".")[0][:-9]))
    )
    assert (status, code_of(body)) == (401, "invalid_api_key")
    assert "copy it whole" in body["error"]["message"]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ({"name": "a b"}, "name"),
        ({"passes": 4}, "passes"),
        ({"passes": -1}, "passes"),
        ({"expires_in": 0}, "expires_in"),
        ({"expires_in": 1e9}, "expires_in"),
        ({"expires": 5}, "expires"),
        ({"nodes": ["nobody"]}, "nodes.0"),
        ({"models": [""]}, "models.0"),
        ({"models": ["m"] * 17}, "models"),
        ({"rpm": -1}, "rpm"),
        ({"moon": "full"}, "moon"),
    ],
)
async def test_an_invalid_invitation_is_refused_by_field(closed, wanted, place):
    call = closed.http.post(GRANTS, json=wanted, headers=bearer(TOKEN))
    status, body = await said(call)
    assert (status, body["error"]["param"]) == (400, place)
    assert closed.context.keys.keys == []


async def test_only_operators_may_invite(closed):
    key = await key_for(closed)
    status, _ = await said(closed.http.post(GRANTS, json={}, headers=bearer(key)))
    assert status == 403
