"""Bodies of registrations are described as they are read."""

from node.faces.openapi.projects import TABLE
from node.faces.v0.registration import read_worker
from tests.node.faces.v0.test_registration import HERE


class Recorded(dict):
    """An object that remembers which of its fields were looked for."""

    def __init__(self, fields):
        super().__init__(fields)
        self.wanted = set()

    def get(self, name, default=None):
        self.wanted.add(name)
        return super().get(name, default)


def test_what_a_registration_may_hold_is_what_is_read_of_it():
    given = Recorded({"model": "tiny", "api": "http://127.0.0.1:9000"})
    read_worker("p", given, HERE)
    described = TABLE["POST /api/v0/ai/model/register"].request
    assert {*described["properties"]} == given.wanted | {"project"}
    assert described["required"] == ["project", "model", "api"]


def test_whoever_names_no_node_is_not_asked_for_one():
    at_one, at_any = (TABLE[f"POST /api/v0/chat/completion{way}"] for way in ("", "/proxy"))
    assert "node_id" in at_one.query
    assert "node_id" not in at_any.query
