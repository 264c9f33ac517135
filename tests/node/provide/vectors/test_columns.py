"""Columns at the provider itself. That they are set, found and deleted is shown by test_vectors_provided.py."""

import aiohttp

from node.provide.face import application
from node.provide.vectors.columns import ColumnFace
from node.provide.vectors.sqlite_vec import SqliteVectors
from node.provide.vectors.store import Member, VectorStore
from tests.node.provide.conftest import KEY
from tests.workers.serving import served


class Shared(VectorStore):
    """Store in which another provider sets each key a moment after this one has begun to."""

    def join(self, id_, files, *more):
        super().join(id_, files, *more)
        member = Member(id_, files[0][0], "", 1, 0)
        self.put(member, 1, ["theirs"], [[1, 2]])
        self.settle(member)


async def test_a_key_that_two_providers_set_at_the_same_time_has_one_value(files, tmp_path):
    store = Shared(SqliteVectors(tmp_path / "columns.db"))
    face = ColumnFace(files, store, lambda: 1e9)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        served(application(face.routes(), KEY)) as url,
        aiohttp.ClientSession(url, headers=headers) as http,
    ):
        fields = {"keys": [[1, 2]], "values": ["mine"]}
        async with http.post("/stores/set", json=fields) as response:
            assert response.status == 200
        async with http.post("/stores/get", json={"keys": [[1, 2]]}) as response:
            assert (await response.json())["values"] == ["theirs"]
    store.close()
