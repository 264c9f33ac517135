"""`/api/v1/grants`: invitations for people and nodes, for operators. Each is shown only once, in the answer that creates it.

Grants are listed and revoked among the keys, by name (`/api/v1/keys`).
"""

import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any

from aiohttp import web
from pydantic import ConfigDict, Field

from node.auth import invitation
from node.auth.grants import Terms
from node.auth.invitation import Invitation
from node.faces import Context
from node.faces.request_reader import done, read_as, read_object
from node.faces.v1.keys import check_name
from registry.mesh.discovered import only_loopback

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


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    idle = context.settings.router.idle_timeout

    async def create(request: web.Request) -> web.Response:
        context.access.change(request)
        wanted = _wanted(await read_object(request, idle=idle))
        said = wanted.model_dump(exclude={"name", "expires_in", "for_node", "key", "holder"})
        terms = Terms(**said | {"expires": int(time.time() + wanted.expires_in)})
        name = wanted.name or f"guest-{secrets.token_hex(3)}"
        grant = await context.keys.grant(name, terms)
        await context.audited(request, "invite", name)
        key = context.swarm_key if wanted.for_node else ""
        addresses = context.registry.own.reach.mesh
        text = invitation.written(Invitation(grant, addresses, key))
        near = [_ONLY_HERE] if wanted.for_node and only_loopback(addresses) else []
        return done(name=name, expires=terms.expires, invitation=text, warnings=near)

    return [web.post("/api/v1/grants", create)]


def _wanted(given: Mapping[str, Any]) -> WantedGrant:
    """Return the grant to create; raise `WrongParameter`."""
    wanted = read_as(WantedGrant, given)
    if wanted.name:
        check_name(wanted.name)
    return wanted
