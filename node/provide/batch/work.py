"""Work for a line: one request to the node, or several."""

import orjson

from node.provide.asker import Asker, NodeAnswer
from node.provide.batch.store import OpenLine
from node.provide.batch.synthetic import ENDPOINT, SCORING, points_of, score


async def do(asker: Asker, line: OpenLine, session: str = "") -> NodeAnswer:
    """Send a line, and return its answer; lines of one `session` should be routed to the same cache."""
    if line.endpoint == SCORING:
        return await score(asker, orjson.loads(line.body))
    if line.endpoint == ENDPOINT:
        return await points_of(asker, orjson.loads(line.body), line.custom_id)
    return await asker.post(line.endpoint, line.body, session=session)
