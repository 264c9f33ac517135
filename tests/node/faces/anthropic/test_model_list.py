"""List of models for Anthropic's clients: the same models, in their shape; other clients see no difference."""

from datetime import datetime

import pytest

from node.faces.model_list import model
from tests.node.faces.assembly import told

VERSION = {"anthropic-version": "2023-06-01"}


async def test_the_list_is_one_page(served):
    status, payload = await told(served.http.get("/v1/models?limit=20", headers=VERSION))
    assert (status, payload["has_more"], payload["first_id"], payload["last_id"]) == (
        200,
        False,
        "tiny",
        "tiny",
    )
    (entry,) = payload["data"]
    assert (entry["type"], entry["display_name"], entry["lifecycle"]) == (
        "model",
        "tiny",
        "active",
    )
    created_at = datetime.strptime(entry["created_at"], "%Y-%m-%dT%H:%M:%S%z")
    assert created_at.timestamp() == entry["created"] > 1_700_000_000


async def test_one_model_has_anthropics_shape_and_an_unknown_one_is_404(served):
    status, payload = await told(served.http.get("/v1/models/tiny", headers=VERSION))
    assert (status, payload["type"], payload["id"]) == (200, "model", "tiny")
    status, _ = await told(served.http.get("/v1/models/none", headers=VERSION))
    assert status == 404


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
async def test_clients_without_the_version_header_see_no_difference(served, path):
    _, plain = await told(served.http.get(path))
    (entry,) = plain.get("data", [plain])
    assert entry["type"] == 0
    assert not {"display_name", "first_id", "lifecycle"} & {*plain, *entry}


def test_a_known_context_length_is_shown():
    assert model({"id": "a", "created": 1, "context_length": 5})["max_input_tokens"] == 5


async def test_an_empty_list_has_no_first_and_last_id(alone):
    _, payload = await told(alone.http.get("/v1/models", headers=VERSION))
    assert (payload["data"], payload["first_id"], payload["last_id"]) == ([], None, None)
