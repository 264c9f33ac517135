"""Where the paths of a service are, and which statuses are its own answers."""

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
def test_a_path_stands_where_the_address_says(api, path, url):
    assert str(url_of(api, path)) == url


def test_what_a_service_says_of_a_request_is_its_answer():
    assert all(map(is_answer, (200, 202, 204, 400, 404, 409, 410, 413, 422)))
    assert not any(map(is_answer, (301, 401, 403, 405, 408, 425, 429, 500, 501, 503)))
