"""What does the outermost middleware tell the faces about a request?"""

from aiohttp import web

REQUEST_ID = web.RequestKey("modelvine_request_id", str)
"""The request's id: the caller's own where it is well formed, the same on every hop and in every log line."""

ASKING_PEER = web.RequestKey("modelvine_asking_peer", str)
"""On the link listener: the peer that asks, as its certificate proves."""
