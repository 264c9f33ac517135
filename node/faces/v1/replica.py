"""`/api/v1/replica` of the link listener: the load of a replica here, and how much of a conversation it has read."""

from aiohttp import web

from node.faces import Serving
from node.faces.request_reader import json_answer, read_object
from router.errors import UnknownModel
from router.peers.replica_question import PATH, answer_of, question
from router.state.prefix_index import ReplicaAnswer


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes."""
    router, idle = context.router, context.settings.router.idle_timeout

    async def replica(http: web.Request) -> web.Response:
        asked = question(await read_object(http, idle=idle))
        worker = router.worker_of(asked.project, asked.model, asked.cid, asked.kind)
        if worker is None:
            raise UnknownModel(asked.model)
        time = router.service_time(worker, asked.kind)
        return json_answer(
            answer_of(
                ReplicaAnswer(router.read_by(worker, asked.said), context.load_of(worker), time)
            )
        )

    return [web.post(PATH, replica)]
