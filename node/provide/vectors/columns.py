"""HTTP face of a store of vectors in columns: LocalAI's `/stores/…`, where callers bring their own vectors and texts.

Each key is a file with one text, so that the vector store needs no change for it.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from node.provide.database import Superseded
from node.provide.face import Fault, as_json, object_of
from node.provide.files import Files
from node.provide.vectors.store import Member, VectorStore, WrongVector
from registry.clock import Clock

MAX_KEYS = 10_000
"""Keys of one request."""

MAX_FOUND = 1_000

_STORE = "columns"
_CHUNK = (1, 0)


class ColumnFace:
    """Handlers for the single store, which has a database of its own."""

    def __init__(self, files: Files, store: VectorStore, wall: Clock) -> None:
        self._run = files.run_in_thread
        self._store = store
        self._wall = wall
        if store.find(_STORE) is None:
            store.add(_STORE, int(wall()), _STORE, "", {})

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        return [
            web.post("/stores/set", self.set),
            web.post("/stores/get", self.get),
            web.post("/stores/delete", self.delete),
            web.post("/stores/find", self.find),
        ]

    async def set(self, http: web.Request) -> web.Response:
        """Store values, each under its key."""
        fields = await object_of(http)
        keys, values = _keys(fields), fields.get("values")
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise Fault(400, "`values` are texts", param="values")
        if len(values) != len(keys):
            raise Fault(400, "`keys` and `values` must have the same length", param="values")
        now = int(self._wall())

        def keep() -> None:
            for key, value in zip(keys, values, strict=True):
                id_ = _id(key)
                self._store.join(_STORE, [(id_, "")], now, {"key": key}, _CHUNK)
                member = Member(_STORE, id_, "", *_CHUNK)
                try:
                    self._store.put(member, now, [value], [key])
                except WrongVector:
                    self._store.leave(_STORE, id_)
                    raise
                except Superseded:
                    # Another provider has set the same key meanwhile: its value stays.
                    continue
                self._store.settle(member)

        try:
            await self._run(keep)
        except WrongVector as error:
            raise Fault(400, str(error), param="keys") from error
        return as_json({})

    async def get(self, http: web.Request) -> web.Response:
        """Return the values of those keys that exist."""
        keys = _keys(await object_of(http))

        def look() -> list[tuple[Sequence[float], str]]:
            return [(key, text) for key in keys for text in self._store.texts(_STORE, _id(key))]

        pairs = await self._run(look)
        return as_json({"keys": [key for key, _ in pairs], "values": [text for _, text in pairs]})

    async def delete(self, http: web.Request) -> web.Response:
        """Delete values by their keys."""
        keys = _keys(await object_of(http))

        def forget() -> None:
            for key in keys:
                self._store.leave(_STORE, _id(key))

        await self._run(forget)
        return as_json({})

    async def find(self, http: web.Request) -> web.Response:
        """Return the values whose keys are nearest to a key."""
        fields = await object_of(http)
        (key,), limit = _keys({"keys": [fields.get("key")]}), fields.get("topk", 1)
        if not isinstance(limit, int) or not 1 <= limit <= MAX_FOUND:
            raise Fault(400, f"`topk` is a number up to {MAX_FOUND:,}", param="topk")
        now = int(self._wall())
        try:
            matches = await self._run(lambda: self._store.search(_STORE, key, now, limit))
        except WrongVector as error:
            raise Fault(400, str(error), param="key") from error
        return as_json(
            {
                "keys": [match.attributes["key"] for match in matches],
                "values": [match.text for match in matches],
                "similarities": [match.score for match in matches],
            }
        )


def _keys(fields: Mapping[str, Any]) -> list[list[float]]:
    keys = fields.get("keys")
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise Fault(400, f"`keys` are up to {MAX_KEYS:,} vectors", param="keys")
    for key in keys:
        numbers = isinstance(key, list) and all(
            isinstance(n, int | float) and not isinstance(n, bool) for n in key
        )
        if not numbers or not key:
            raise Fault(400, "a key is a list of numbers", param="keys")
    return keys


def _id(key: Sequence[float]) -> str:
    """Return the file id of a key: a hash of its numbers as stored."""
    try:
        packed = struct.pack(f"<{len(key)}f", *key)
    except OverflowError as error:
        raise Fault(400, "a number of a key is too large", param="keys") from error
    return hashlib.sha256(packed).hexdigest()
