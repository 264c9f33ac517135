"""Which handler answers which path: exact ones first, then what begins alike, by method."""

import pytest

from node import web


async def handler(request):
    raise AssertionError


def asked(method, target):
    return web.HttpRequest(None, method, target, {})


ROUTES = web.Routes([web.get("/a", handler), web.post("/a", handler), web.get("/m/*", handler)])


@pytest.mark.parametrize("target", ["/a", "/a?x=/b", "/%61"])
def test_a_path_is_found_whatever_its_query_and_escapes(target):
    assert ROUTES.find(asked("GET", target)).path == "/a"


def test_what_can_be_read_can_be_asked_for_by_head():
    assert ROUTES.find(asked("HEAD", "/a")).method == "GET"


def test_a_star_stands_for_what_goes_on_slashes_included():
    request = asked("GET", "/m/x%20y/z?n=1")
    ROUTES.find(request)
    assert request.tail == "x y/z"


@pytest.mark.parametrize("target", ["/", "/b", "/a/", "//a", "/m", "/m/", "/./a"])
def test_other_paths_lead_nowhere(target):
    with pytest.raises(web.NoPath):
        ROUTES.find(asked("GET", target))


def test_another_method_is_told_the_ones_there_are():
    with pytest.raises(web.NoMethod) as raised:
        ROUTES.find(asked("PUT", "/a"))
    assert raised.value.allowed == ("GET", "HEAD", "POST")
