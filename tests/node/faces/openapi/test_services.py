"""Descriptions of calls to services: each call has a path, though several share one route."""

from node.faces.openapi.services import beneath


def test_the_calls_of_one_route_have_separate_paths():
    assert beneath("GET", "/v1/files/{tail}") == ["/v1/files/{id}", "/v1/files/{id}/content"]
    assert beneath("DELETE", "/v1/files/{tail}") == ["/v1/files/{id}"]
    assert "/v1/vector_stores/{id}/files/{id_2}" in beneath("GET", "/v1/vector_stores/{tail}")


def test_routes_outside_the_services_have_no_calls():
    assert beneath("GET", "/v1/models/{tail}") == []
    assert beneath("GET", "/v1/files") == []
