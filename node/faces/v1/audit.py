"""`/api/v1/audit`: who changed what at the nodes of this site, for operators."""

from dataclasses import asdict

from aiohttp import web

from node.auth.audit import faults
from node.faces import Context
from node.faces.request_reader import count_in_query, done

USUAL = 100


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def audit(request: web.Request) -> web.Response:
        context.access.change(request)
        number = count_in_query(request, default=USUAL)
        found = await context.audit.entries()
        newest = sorted(found, key=lambda one: one.at)[-number:]
        return done(faults=list(faults(found)), audit=[asdict(one) for one in newest])

    return [web.get("/api/v1/audit", audit)]
