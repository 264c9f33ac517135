"""URLs of a service's paths, and the statuses that count as its answers."""

import pytest

from router.http.service_call import is_answer, url_of


@pytest.mark.parametrize(
    ("api", "path", "url"),
    [
        ("http://h:1", "/v1/batches", "http://h:1/v1/batches"),
        ("http://h:1/", "/v1/batches/a%2Fb?limit=2", "http://h:1/v1/batches/a%2Fb?limit=2"),
        ("http://h:1/v1", "/v1/files", "http://h:1/v1/files"),
        ("http://h:1/sub/v1", "/v1/files", "http://h:1/sub/v1/files"),
        ("http://h:1/v1/batches", "/v1/files", "http://h:1/v1/files"),
        ("http://h:1/inference", "/quantize", "http://h:1/quantize"),
        ("http://h:1/a/vector_store/create", "/vector_store", "http://h:1/a/vector_store"),
        ("http://h:1/v1?key=a%20b", "/v1/files", "http://h:1/v1/files?key=a%20b"),
        ("http://h:1/v1?k=1", "/v1/files?l=2", "http://h:1/v1/files?l=2&k=1"),
    ],
)
def test_the_url_of_a_path_is_derived_from_the_registered_address(api, path, url):
    assert str(url_of(api, path)) == url


def test_statuses_about_the_request_are_answers_and_those_about_the_service_are_not():
    assert all(map(is_answer, (200, 202, 204, 400, 404, 409, 410, 413, 422)))
    assert not any(map(is_answer, (301, 401, 403, 405, 408, 425, 429, 500, 501, 503)))
