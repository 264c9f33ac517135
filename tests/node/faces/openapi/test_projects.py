"""Descriptions of the bodies of registrations, as the node reads them."""

from node.faces.openapi.projects import TABLE
from node.faces.v0.registration import read_worker
from tests.node.faces.v0.test_registration import HERE


class Recorded(dict):
    """Dictionary that remembers which of its fields were looked up."""

    def __init__(self, fields):
        super().__init__(fields)
        self.wanted = set()

    def get(self, name, default=None):
        self.wanted.add(name)
        return super().get(name, default)


def test_a_registration_is_described_with_exactly_the_fields_that_are_read():
    given = Recorded({"model": "tiny", "api": "http://127.0.0.1:9000"})
    read_worker("p", given, HERE)
    described = TABLE["POST /api/v0/ai/model/register"].request
    assert {*described["properties"]} == given.wanted | {"project"}
    assert described["required"] == ["project", "model", "api"]


def test_the_proxy_path_has_no_parameter_for_a_node():
    at_one, at_any = (TABLE[f"POST /api/v0/chat/completion{way}"] for way in ("", "/proxy"))
    assert "node_id" in at_one.query
    assert "node_id" not in at_any.query
