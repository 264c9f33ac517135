"""Calls of services have a path each, though several come by one route."""

from node.faces.openapi.services import beneath


def test_the_calls_of_one_route_are_told_apart():
    assert beneath("GET", "/v1/files/{tail}") == ["/v1/files/{id}", "/v1/files/{id}/content"]
    assert beneath("DELETE", "/v1/files/{tail}") == ["/v1/files/{id}"]
    assert "/v1/vector_stores/{id}/files/{id_2}" in beneath("GET", "/v1/vector_stores/{tail}")


def test_no_other_route_is_one_of_services():
    assert beneath("GET", "/v1/models/{tail}") == []
    assert beneath("GET", "/v1/files") == []
