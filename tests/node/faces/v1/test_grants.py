"""Invitations over HTTP: operators make them, they admit what their terms say, and are listed without their secret."""

from dataclasses import replace

import pytest

from node.auth import invitation
from tests.node.faces.assembly import TOKEN
from tests.node.faces.v1.test_keys import ASKED, KEYS, bearer, code_of, key_for, said

GRANTS = "/api/v1/grants"
CHAT = "/v1/chat/completions"


async def invited(node_, **wanted):
    call = node_.http.post(GRANTS, json=wanted, headers=bearer(TOKEN))
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
    held = invitation.read(made["invitation"])
    assert held.addresses == closed.context.registry.own.reach.mesh[: invitation.MAX_ADDRESSES]
    terms = held.grant.blocks[0].terms
    assert (terms.models, terms.passes, terms.nodes) == (("tiny",), 2, (closed.identity.peer,))
    assert terms.expires == made["expires"]
    assert made["name"].startswith("guest-")


async def test_an_invitation_for_a_node_that_only_its_machine_can_reach_has_a_warning(closed):
    registry = closed.context.registry
    near = ("/ip4/127.0.0.1/tcp/6101", "/ip6/::1/tcp/6101")
    await registry.readdress(replace(registry.own.reach, mesh=near))
    made = await invited(closed, name="gpu", for_node=True)
    assert ["--profile lan" in warning for warning in made["warnings"]] == [True]
    assert (await invited(closed, name="ann"))["warnings"] == []
    await registry.readdress(replace(registry.own.reach, mesh=(*near, "/ip4/192.0.2.7/tcp/6101")))
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
