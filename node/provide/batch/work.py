"""Work of a line: a request to the node, or one that takes several."""

import orjson

from node.provide.asker import Asker, NodeAnswer
from node.provide.batch.store import OpenLine
from node.provide.batch.synthetic import ENDPOINT, SCORING, points_of, score


async def do(asker: Asker, line: OpenLine, session: str = "") -> NodeAnswer:
    """Return what a line is answered; lines of one session had better find one another's cache."""
    if line.endpoint == SCORING:
        return await score(asker, orjson.loads(line.body))
    if line.endpoint == ENDPOINT:
        return await points_of(asker, orjson.loads(line.body), line.custom_id)
    return await asker.post(line.endpoint, line.body, session=session)
