"""`/api/v1/grants`: invitations of people and nodes, for operators. One is in the answer that makes it, and nowhere else.

Grants are listed and revoked among the keys, by name (`/api/v1/keys`).
"""

import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any

from aiohttp import web
from pydantic import ConfigDict, Field, ValidationError

from node.auth import invitation
from node.auth.grants import Terms
from node.auth.invitation import Invitation
from node.auth.keys import NAME
from node.faces import Context
from node.faces.errors import WrongParameter
from node.faces.request_reader import done, read_object

USUAL_SECONDS = 7 * 86_400.0
MAX_SECONDS = 366 * 86_400.0


class Wanted(Terms):
    """A grant that is wanted, for `expires_in` seconds. `for_node` asks for an invitation that holds the mesh's key."""

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
        made = Invitation(grant, context.registry.own.reach.mesh, key)
        return done(name=name, expires=terms.expires, invitation=invitation.written(made))

    return [web.post("/api/v1/grants", create)]


def _wanted(given: Mapping[str, Any]) -> Wanted:
    """Read which grant is wanted; raise `WrongParameter`."""
    try:
        wanted = Wanted.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise WrongParameter(f"{place}: {first['msg']}", param=place) from None
    if wanted.name and not NAME.fullmatch(wanted.name):
        raise WrongParameter(
            f"{wanted.name[:100]!r} is no name: 1 to 64 letters, digits and . _ @ + -, a letter or digit first",
            param="name",
        )
    return wanted
