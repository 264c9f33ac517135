"""Rankings: the same shape whatever the worker's protocol, also on the paths of Cohere's clients."""

import orjson
import pytest

from tests.node.faces.assembly import told
from tests.workers import localai_worker

ASKED = {"model": "tiny", "query": "q", "documents": [{"text": "far"}, "near"]}
OWN = {
    "model": "own",
    "results": [{"index": 1, "score": 0.9, "document": "near"}, {"index": 0, "score": 0.2}],
}


def shape(payload):
    return [sorted(row) for row in payload["results"]], [
        type(row["document"]) for row in payload["results"]
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/v1/openai/v1/rerank"])
@pytest.mark.parametrize("place", ["serving", "asked"])
async def test_a_ranking_has_one_shape_on_every_path_and_for_every_protocol(
    mesh, worker, place, path
):
    worker.fail(answer=orjson.dumps(OWN))
    node = await mesh.offers(place, worker)
    status, payload = await told(node.http.post(path, json=ASKED))
    assert (status, payload["model"]) == (200, "tiny")
    assert payload["results"] == [
        {"index": 1, "relevance_score": 0.9, "document": {"text": "near"}},
        {"index": 0, "relevance_score": 0.2, "document": {"text": "far"}},
    ]
    assert orjson.loads(worker.received[-1].body)["documents"] == ["far", "near"]
    async with localai_worker.running() as backend:
        api = backend.url.replace("grpc:", "grpc+localai:")
        await mesh.one.register(backend, model="other", api=api)
        _, other = await told(mesh.one.http.post(path, json=ASKED | {"model": "other"}))
    assert shape(other) == shape(payload)
