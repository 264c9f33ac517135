"""Descriptions of requests, rows, registrations and services: they say what the node reads and shows."""

import pytest

from node.auth.audit import AuditEntry
from node.auth.usage_row import UsageRow
from node.faces.openapi import operators, projects
from node.faces.openapi.models import KINDS, paths_under
from node.faces.v0.registration import read_worker
from node.observe.log_writer import LogLine
from node.peers.followers import NodeEvent
from router.requests import MODEL_KINDS
from tests.node.faces.v0.test_registration import HERE


def test_every_kind_is_described():
    assert list(KINDS) == list(MODEL_KINDS)


def test_a_form_is_described_where_files_are_sent():
    with_files = {kind for kind, description in KINDS.items() if description.form is not None}
    assert {kind.value for kind in with_files} == {
        "images/edits",
        "audio/transcriptions",
        "audio/translations",
    }


@pytest.mark.parametrize(
    ("operation", "name", "row"),
    [
        ("GET /api/v1/usage", "usage", UsageRow),
        ("GET /api/v1/audit", "audit", AuditEntry),
        ("GET /api/v1/node-events", "events", NodeEvent),
        ("GET /api/v1/logs", "logs", LogLine),
    ],
)
def test_a_row_has_the_fields_that_are_described(operation, name, row):
    described = operators.TABLE[operation].answer["properties"][name]["items"]["properties"]
    assert {*described} == {*row.__match_args__}


class Recorded(dict):
    """Dictionary that remembers which of its fields were looked up."""

    def __init__(self, fields):
        super().__init__(fields)
        self.wanted = set()

    def get(self, name, default=None):
        self.wanted.add(name)
        return super().get(name, default)


def test_a_registration_is_described_with_exactly_the_fields_that_are_read():
    fields = Recorded({"model": "tiny", "api": "http://127.0.0.1:9000"})
    read_worker("p", fields, HERE)
    described = projects.TABLE["POST /api/v0/ai/model/register"].request
    assert {*described["properties"]} == fields.wanted | {"project"}
    assert described["required"] == ["project", "model", "api"]


def test_the_proxy_path_has_no_parameter_for_a_node():
    at_one, at_any = (
        projects.TABLE[f"POST /api/v0/chat/completion{suffix}"] for suffix in ("", "/proxy")
    )
    assert "node_id" in at_one.query
    assert "node_id" not in at_any.query


def test_the_calls_of_one_route_have_separate_paths():
    assert paths_under("GET", "/v1/files/{tail}") == ["/v1/files/{id}", "/v1/files/{id}/content"]
    assert paths_under("DELETE", "/v1/files/{tail}") == ["/v1/files/{id}"]
    assert "/v1/vector_stores/{id}/files/{id_2}" in paths_under("GET", "/v1/vector_stores/{tail}")


def test_routes_outside_the_services_have_no_calls():
    assert paths_under("GET", "/v1/models/{tail}") == []
    assert paths_under("GET", "/v1/files") == []
