"""HTTP server of a provider, for the node at which it is registered; pages of lists have OpenAI's shape."""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from node.provide.database import DatabaseError
from node.provide.files import NoRoom
from node.provide.form import MAX_JSON_BYTES, Fault, as_json

log = logging.getLogger("modelvine.provide")

MAX_PAGE = 100

_LIMIT = re.compile("[0-9]{1,5}")


def application(routes: Iterable[web.RouteDef], key: str) -> web.Application:
    """Return the application. A request without the key learns nothing."""

    @web.middleware
    async def admit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        shown = request.headers.get("authorization", "")
        # A caller on this machine needs the key, too.
        if not hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {key}".encode()):
            raise Fault(401, "only the node at which this service is registered may call it")
        try:
            return await handler(request)
        except ConnectionError:
            raise
        except NoRoom as full:
            raise Fault(507, str(full)) from full
        except (OSError, DatabaseError) as error:
            log.error("%s %s failed: %s", request.method, request.path, error)  # noqa: TRY400
            raise Fault(507, "this service cannot store anything now; see its log") from error

    app = web.Application(middlewares=[admit], client_max_size=MAX_JSON_BYTES)
    app.add_routes([web.get("/v1/models", _models), *routes])
    return app


async def _models(_: web.Request) -> web.Response:
    """Return an empty list of models."""
    return as_json({"object": "list", "data": []})


def cut(http: web.Request, ids: list[str]) -> tuple[list[str], bool]:
    """Return the requested page of a list of ids, and whether there are more; raise `Fault`."""
    limit, after = http.query.get("limit", "20"), http.query.get("after")
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= 10_000:
        raise Fault(400, "`limit` is a number from 1", param="limit")
    if after is not None and after not in ids:
        raise Fault(400, "`after` names nothing of this service", param="after")
    begin = ids.index(after) + 1 if after else 0
    end = begin + min(int(limit), MAX_PAGE)
    return ids[begin:end], end < len(ids)


def page_of(http: web.Request, found: list[dict[str, Any]]) -> web.Response:
    """Return the requested page of a list whose entries have an `id`; raise `Fault`."""
    ids, more = cut(http, [one["id"] for one in found])
    page = set(ids)
    return listed([one for one in found if one["id"] in page], more=more)


def listed(data: Iterable[dict[str, Any]], *, more: bool) -> web.Response:
    """Return one page as OpenAI shows it."""
    shown = list(data)
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return as_json(
        {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": more}
    )
