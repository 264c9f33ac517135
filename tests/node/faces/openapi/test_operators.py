"""Descriptions of the rows that operators are shown."""

import pytest

from node.auth.audit import AuditEntry
from node.auth.usage_row import UsageRow
from node.faces.openapi.operators import TABLE
from node.observe.recent_lines import LogLine
from node.peers.node_events import NodeEvent


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
    described = TABLE[operation].answer["properties"][name]["items"]["properties"]
    assert {*described} == {*row.__match_args__}
