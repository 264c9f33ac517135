"""Laws of ids with a home: adding a home is reversible, and two homes do not mix."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId, Service
from registry.signing import Identity
from router.services.ids import HomeRemover, ServiceHome, add_homes, home_of, is_kept_by

NODE = Identity(bytes(32)).peer
HOME = home_of(NODE, Service("p", "m"))
OTHER = home_of(NODE, Service("q", "m"))


def put(payload: object, home: ServiceHome = HOME) -> object:
    return orjson.loads(add_homes(orjson.dumps(payload), home))


def at_home(id_: str, home: ServiceHome = HOME) -> str:
    return f"{id_}@{home.node}.{home.tag}"


def test_services_of_one_node_have_homes_of_their_own():
    assert HOME != OTHER
    assert home_of(NODE, Service("p", "m", cid="2")) not in (HOME, OTHER)


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=200))
def test_stripping_the_home_restores_the_id(id_):
    answer = put({"id": id_})
    stripper = HomeRemover()
    assert isinstance(answer, dict)
    assert stripper.strip_id(answer["id"]) == id_
    assert stripper.homes == {HOME}


def test_ids_are_found_in_an_answer_and_in_its_lists():
    answer = {
        "id": "a",
        "input_file_id": "b",
        "error_file_id": None,
        "result_files": ["c", "d"],
        "file": {"id": "e"},
        "data": [{"id": "f", "file_id": "g"}, 1],
        "metadata": {"id": "mine"},
        "name": "h",
        "last_id": "",
        "training_file": "https://example.org/a",
        "success_file_path": {"type": "uri", "value": "/v1/files/i/content"},
        "error_file_path": {"type": "filepath", "value": "/srv/out"},
        "checkpoints": ["/v1/files/j/content", "s3://k"],
        "error_path": "/v1/files/l/content",
        "logs": "/v1/files/m/content",
        "fine_tuning_job_id": "n",
    }
    assert put(answer) == {
        **answer,
        "id": at_home("a"),
        "input_file_id": at_home("b"),
        "result_files": [at_home("c"), at_home("d")],
        "file": {"id": at_home("e")},
        "data": [{"id": at_home("f"), "file_id": at_home("g")}, 1],
        "success_file_path": {"type": "uri", "value": f"/v1/files/{at_home('i')}/content"},
        "checkpoints": [f"/v1/files/{at_home('j')}/content", "s3://k"],
        "error_path": f"/v1/files/{at_home('l')}/content",
        "logs": f"/v1/files/{at_home('m')}/content",
        "fine_tuning_job_id": at_home("n"),
    }


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"id"', b'{"id":1}', b'{"id":["a",1]}'])
def test_a_body_without_ids_is_unchanged(body):
    assert add_homes(body, HOME) == body


def test_an_id_without_a_home_is_left_alone():
    stripper = HomeRemover()
    for id_ in ("a", "a@b", f"a@{NODE}", f"a@{NODE}.xyz", f"a@{NODE}.0123abcd "):
        assert stripper.strip_id(id_) == id_
    assert not stripper.homes


def test_homes_are_stripped_from_a_body():
    stripper = HomeRemover()
    fields = {"input_file_id": at_home("a"), "file_ids": [at_home("b"), "c"], "model": at_home("x")}
    assert stripper.strip_fields(fields) == {"input_file_id": "a", "file_ids": ["b", "c"]}
    assert stripper.homes == {HOME}
    assert stripper.strip_id(at_home("d", OTHER)) == "d"
    assert stripper.homes == {HOME, OTHER}


def test_services_with_one_cid_keep_the_same_ids_and_others_do_not():
    shared, plain = Service("p", "m", cid="1"), Service("p", "m")
    elsewhere = PeerId(f"{NODE[:-1]}a")
    assert is_kept_by(home_of(NODE, shared), elsewhere, shared)
    assert not is_kept_by(home_of(NODE, plain), elsewhere, plain)
    assert is_kept_by(home_of(NODE, plain), NODE, plain)
    assert not is_kept_by(home_of(NODE, shared), NODE, Service("p", "m", cid="2"))


def test_a_node_may_be_the_service_of_another():
    stripper = HomeRemover()
    twice = at_home(at_home("a"), OTHER)
    assert (stripper.strip_id(twice), stripper.homes) == (at_home("a"), {OTHER})
