"""Descriptions of all kinds of requests to models."""

from node.faces.openapi.models import KINDS
from router.requests import MODEL_KINDS


def test_every_kind_is_described():
    assert list(KINDS) == list(MODEL_KINDS)


def test_a_form_is_described_where_files_are_sent():
    with_files = {kind for kind, said in KINDS.items() if said.form is not None}
    assert {kind.value for kind in with_files} == {
        "images/edits",
        "audio/transcriptions",
        "audio/translations",
    }
