"""`/api/v1/keys` and `/api/v1/grants`: keys of users, and invitations for people and nodes, for operators.

Each is shown only once, in the answer that creates it. Grants are listed and revoked among the keys, by name.
"""

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from node.auth import invitation
from node.auth.grants import Terms
from node.auth.invitation import Invitation
from node.auth.keys import MAX_MODEL_LIMITS, NAME, Allowance, ApiKey, ModelLimit
from node.faces import Context
from node.faces.errors import WrongParameter
from node.faces.request_reader import done, read_as, read_object
from registry.mesh.discovered import only_loopback

MAX_AT_ONCE = 5_000
"""The most keys that one request may create: enough for a whole school."""

MAX_DAYS = 36_500


class WantedLimit(ModelLimit):
    """A limit for some models in a request for a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WantedKey(Allowance):
    """A key to create. `expires_in` is in seconds; either it or `expires` may be given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    model_limits: Annotated[tuple[WantedLimit, ...], Field(max_length=MAX_MODEL_LIMITS)] = ()
    expires_in: Annotated[float, Field(ge=0, le=MAX_DAYS * 86_400, allow_inf_nan=False)] = 0.0


class KeyCreation(BaseModel):
    """The keys to create in one request; either all are created or none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: Annotated[tuple[WantedKey, ...], Field(min_length=1, max_length=MAX_AT_ONCE)]


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    ring, idle = context.keys, context.settings.router.idle_timeout
    audited = context.audited

    async def listing(request: web.Request) -> web.Response:
        context.access.check_change(request)
        now = time.time()
        return done(keys=[shown(key, now) for key in ring.keys])

    async def create(request: web.Request) -> web.Response:
        context.access.check_change(request)
        order = _order(await read_object(request, idle=idle))
        created = await ring.create(
            {wanted_key.name: _allowance(wanted_key, time.time()) for wanted_key in order.keys}
        )
        # The audit log has no room for all names of a whole class, but for their number.
        names = " ".join(created)
        await audited(
            request, "create keys", names if len(created) == 1 else f"{len(created)}: {names}"
        )
        return done(keys=[{"name": name, "key": secret} for name, secret in created.items()])

    async def rotate(request: web.Request) -> web.Response:
        context.access.check_change(request)
        name = request.match_info["name"]
        secret = await ring.rotate(name)
        await audited(request, "rotate key", name)
        return done(keys=[{"name": name, "key": secret}])

    async def revoke(request: web.Request) -> web.Response:
        context.access.check_change(request)
        name = request.match_info["name"]
        await ring.revoke(name)
        await audited(request, "revoke key", name)
        return done()

    return [
        web.get("/api/v1/keys", listing),
        web.post("/api/v1/keys", create),
        web.post("/api/v1/keys/{name}/rotate", rotate),
        web.post("/api/v1/keys/{name}/revoke", revoke),
    ]


def shown(key: ApiKey, now: float) -> dict[str, Any]:
    """Return a key as operators see it, without its hash."""
    return {
        "state": key.end_reason(now) or "active",
        **key.model_dump(mode="json", exclude={"hash"}),
    }


def check_name(name: str) -> None:
    """Raise `WrongParameter` unless `name` is valid as the name of a key."""
    if not NAME.fullmatch(name):
        raise WrongParameter(
            f"{name[:100]!r} is not a valid name: 1 to 64 letters, digits and . _ @ + -, a letter or digit first",
            param="name",
        )


def _order(fields: Mapping[str, Any]) -> KeyCreation:
    """Return the keys to create; raise `WrongParameter`."""
    order = read_as(KeyCreation, fields)
    for wanted_key in order.keys:
        check_name(wanted_key.name)
        if wanted_key.expires and wanted_key.expires_in:
            raise WrongParameter(
                f"{wanted_key.name}: expires or expires_in, not both", param="expires"
            )
    often, times = Counter(wanted_key.name for wanted_key in order.keys).most_common(1)[0]
    if times > 1:
        raise WrongParameter(f"{often!r} occurs twice", param="name")
    return order


def _allowance(wanted_key: WantedKey, now: float) -> Allowance:
    terms = wanted_key.model_dump(exclude={"name", "expires_in"})
    if wanted_key.expires_in:
        terms["expires"] = now + wanted_key.expires_in
    return Allowance(**terms)


USUAL_SECONDS = 7 * 86_400.0
MAX_SECONDS = 366 * 86_400.0
_ONLY_HERE = (
    "this node can be reached only from this machine, and so can its invitation be used only here: "
    "start it with --profile lan or wan, and invite again"
)


class WantedGrant(Terms):
    """A grant to create, valid for `expires_in` seconds. `for_node` requests an invitation that contains the mesh's key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    name: str = ""
    expires: Annotated[int, Field(ge=0, le=0)] = 0
    expires_in: Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] = USUAL_SECONDS
    for_node: bool = False


def grant_routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    idle = context.settings.router.idle_timeout

    async def create(request: web.Request) -> web.Response:
        context.access.check_change(request)
        wanted = _wanted(await read_object(request, idle=idle))
        said = wanted.model_dump(exclude={"name", "expires_in", "for_node", "key", "holder"})
        terms = Terms(**said | {"expires": int(time.time() + wanted.expires_in)})
        name = wanted.name or f"guest-{secrets.token_hex(3)}"
        grant = await context.keys.grant(name, terms)
        await context.audited(request, "invite", name)
        key = context.swarm_key if wanted.for_node else ""
        addresses = context.registry.own_record.reach.mesh
        text = invitation.written(Invitation(grant, addresses, key))
        near = [_ONLY_HERE] if wanted.for_node and only_loopback(addresses) else []
        return done(name=name, expires=terms.expires, invitation=text, warnings=near)

    return [web.post("/api/v1/grants", create)]


def _wanted(fields: Mapping[str, Any]) -> WantedGrant:
    """Return the grant to create; raise `WrongParameter`."""
    wanted_grant = read_as(WantedGrant, fields)
    if wanted_grant.name:
        check_name(wanted_grant.name)
    return wanted_grant
