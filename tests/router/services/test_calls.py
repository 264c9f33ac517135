"""Laws of the calls of services: a node makes no call that is not in the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.requests import SERVICES, Kind
from router.services.calls import (
    CALLS,
    MAX_PATH_CHARACTERS,
    find,
    format_target,
    kinds_of,
    parse_target,
    path_of,
)


def example(path: str) -> str:
    return path.replace("*", "id-1")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_each_call_is_found_by_its_methods_and_path_alone(call):
    for method in call.methods:
        found = find(method, example(call.path))
        assert found is not None
        assert found[0] == call
        assert found[1] == ["id-1"] * call.path.count("*")
    assert find("PATCH", example(call.path)) is None
    assert find(call.methods[0], f"{example(call.path)}/a/b/c") is None


def test_every_service_has_calls_and_no_path_is_listed_twice():
    assert {kind for call in CALLS for kind in call.kinds} == set(SERVICES)
    listed = [(method, call.path) for call in CALLS for method in call.methods]
    assert len(listed) == len({*listed})


@pytest.mark.parametrize("id_", [".", "..", "%2e%2E"])
def test_an_id_cannot_lead_to_another_path(id_):
    assert find("GET", f"/v1/files/{id_}") is None


@given(st.text(min_size=1, max_size=80))
def test_any_id_stays_one_path_segment(id_):
    found = find("GET", "/v1/batches/x")
    assert found is not None
    path = path_of(found[0], [id_])
    assert path.isascii()
    assert path.count("/") == 3
    assert not {"?", " ", "\n"}.intersection(path)
    if id_ not in (".", ".."):
        assert find("GET", path) == (found[0], [id_])


def test_the_purpose_of_a_file_gives_its_service():
    found = find("POST", "/v1/files")
    assert found is not None
    for purpose, kind in (
        ("batch", Kind.BATCH),
        ("fine-tune", Kind.FINE_TUNING),
        ("x", Kind.VECTORS),
    ):
        assert kinds_of(found[0], purpose) == (kind,)
    assert kinds_of(found[0], None) == found[0].kinds


def test_a_written_call_is_read_back_by_another_node():
    line = "GET /batch_inference/jobs/status?job_id=a+b"
    target = parse_target(line, Kind.BATCH)
    assert (target.method, target.path) == ("GET", "/batch_inference/jobs/status?job_id=a+b")
    assert format_target(target) == line


@pytest.mark.parametrize(
    "said",
    [
        "",
        "GET",
        "GET /admin",
        "PUT /v1/batches",
        "GET /v1/vector_stores",
        "GET /v1/batches/../x",
        "GET /v1/batches?a b HTTP/1.1",
        "GET /v1/batches?é",
        f"GET /v1/batches?{'a' * MAX_PATH_CHARACTERS}",
    ],
)
def test_a_target_that_is_no_call_of_the_service_is_refused(said):
    with pytest.raises(BadRequest):
        parse_target(said, Kind.BATCH)
