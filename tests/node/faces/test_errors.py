"""Errors as callers see them: one row per class, both shapes in every body; and the text of a worker's refusal for people."""

import inspect

import orjson
import pytest

from node.auth import errors as auth_errors
from node.faces import errors as face_errors
from node.faces.errors import (
    MAX_FAULTS,
    TABLE,
    WrongMethod,
    WrongParameter,
    message_in,
    place_of,
    refusal,
)
from registry import errors as registry_errors
from router import errors as router_errors


def classes_in(module):
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Exception) and member.__module__ == module.__name__
    ]


MODULES = registry_errors, router_errors, auth_errors, face_errors
ALL = [found for module in MODULES for found in classes_in(module)]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_class_has_a_row_of_its_own(kind):
    assert kind in TABLE


def test_the_table_names_no_class_that_is_gone():
    assert set(TABLE) == set(ALL)


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.reason)
def test_no_failure_has_a_status_of_success(row):
    assert 400 <= row.status < 600
    assert row.code != 0


@pytest.mark.parametrize(
    ("error", "status", "code", "reason"),
    [
        (face_errors.Unparseable("Parsing error"), 400, 1002, "invalid_body"),
        (face_errors.WrongParameter("no"), 400, 1001, "invalid_parameter"),
        (face_errors.NotAllowed("no"), 403, 1010, "not_allowed"),
        (face_errors.BodyTooLarge(10), 413, 1001, "body_too_large"),
        (face_errors.UnsupportedMediaType("no"), 415, 1011, "unsupported_media_type"),
        (router_errors.BadRequest("no"), 400, 1001, "invalid_request"),
        (router_errors.UnsupportedContentType("no"), 415, 1011, "unsupported_media_type"),
        (router_errors.TooManyParts("no"), 413, 1001, "body_too_large"),
        (router_errors.UnknownModel("m"), 404, 1017, "model_not_found"),
        (router_errors.NobodyServes("no"), 503, 1017, "nobody_serves"),
        (router_errors.NoCapacity("no"), 429, 1017, "no_capacity"),
        (router_errors.WorkerUnreachable("no"), 503, 1017, "worker_unreachable"),
        (router_errors.WorkerLoading(), 503, 1017, "model_loading"),
        (router_errors.WorkerTimeout("first byte", 3), 504, 1005, "worker_timeout"),
        (router_errors.WorkerFailed("no"), 502, 1007, "worker_failed"),
        (router_errors.AnswerBroken("no"), 502, 1018, "answer_broken"),
        (registry_errors.StoreUnavailable("/a/path", public_reason="no"), 500, 5000, "not_saved"),
        (registry_errors.LimitReached("no"), 400, 1001, "limit_reached"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_its_status_and_both_shapes_of_body(error, status, code, reason):
    refused = refusal(error)
    body = orjson.loads(refused.response().body)
    assert refused.status == status
    assert body["code"] == code
    message = (
        error.public_reason if isinstance(error, registry_errors.StoreUnavailable) else str(error)
    )
    assert body["message"] == body["error"]["message"] == message
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == reason


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (router_errors.NobodyServes("no", retry_after=4.2), "5"),
        (router_errors.NoCapacity("no", retry_after=0.01), "1"),
        (router_errors.WorkerBusy("no", retry_after=7), "7"),
        (router_errors.NoCapacity("no", retry_after=1e12), "86400"),
    ],
)
def test_retry_after_is_whole_seconds_and_never_zero(error, seconds):
    assert refusal(error).headers["retry-after"] == seconds


def test_an_unforeseen_error_reveals_nothing_of_its_text():
    refused = refusal(KeyError("the secret prompt"))
    assert refused.status == 500
    assert refused.body["code"] == 5000
    assert b"secret" not in refused.response().body


def test_the_field_at_fault_is_named():
    assert refusal(WrongParameter("no", param="type")).body["error"]["param"] == "type"
    assert refusal(router_errors.BadRequest("no", param="model")).body["error"]["param"] == "model"


def test_a_wrong_method_names_the_right_ones():
    refused = refusal(WrongMethod("PUT", ("GET", "POST")))
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, POST")


class TestAWorkersRefusal:
    """The worker's own words reach the caller, in our shape."""

    def test_keeps_its_status_and_its_error_object(self):
        body = {"error": {"message": "too long", "type": "bad", "param": "messages", "code": "ctx"}}
        refused = refusal(router_errors.WorkerRejected(422, orjson.dumps(body)))
        assert refused.status == 422
        assert refused.body == {"code": 1007, "message": "too long", "error": body["error"]}

    def test_fills_in_what_its_error_object_lacks(self):
        refused = refusal(router_errors.WorkerRejected(400, b'{"error": {"message": "no"}}'))
        assert refused.body["error"].keys() == {"message", "type", "param", "code"}

    def test_has_a_code_that_is_text_or_null_as_openais(self):
        for code, expected in ((400, "400"), ("own", "own"), (None, None)):
            body = {"error": {"message": "no", "type": "t", "code": code}}
            refused = refusal(router_errors.WorkerRejected(400, orjson.dumps(body)))
            assert refused.body["error"]["code"] == expected

    def test_is_described_where_it_is_a_page_of_a_proxy(self):
        page = b"\r\n<html><h1>413 Request Entity Too Large</h1></html>"
        refused = refusal(router_errors.WorkerTooSmall(page))
        assert refused.status == 413
        assert refused.body["message"].startswith("the request is larger than the worker, or a")

    @pytest.mark.parametrize(
        "body", [b'{"error": "no"}', b'{"message": "no"}', b'{"detail": "no"}', b"no", b'"no"']
    )
    def test_is_wrapped_when_it_has_another_shape(self, body):
        refused = refusal(router_errors.WorkerRejected(400, body))
        assert refused.body["message"] == refused.body["error"]["message"] == "no"

    @pytest.mark.parametrize("body", [b"", b"[]", b"\xff\xfe", b"x" * 1_000_000, b'{"error": 5}'])
    def test_is_still_an_error_of_ours_when_its_body_is_nonsense(self, body):
        refused = refusal(router_errors.WorkerRejected(400, body))
        assert refused.status == 400
        assert refused.body["code"] == 1007
        assert len(refused.response().body) < 1000

    @pytest.mark.parametrize(
        ("said", "message", "param"),
        [
            (
                {
                    "detail": [
                        {
                            "loc": ["body", "messages", 0, "role"],
                            "msg": "Field required",
                            "type": "missing",
                        }
                    ]
                },
                "messages.0.role: Field required",
                "messages.0.role",
            ),
            (
                {
                    "detail": [
                        {"loc": ["body", "n"], "msg": "no"},
                        {"loc": ["query", "q"], "msg": "oh"},
                    ]
                },
                "n: no; query.q: oh",
                None,
            ),
            ({"detail": [{"loc": "body", "msg": "no"}]}, "no", None),
            ({"detail": [{"msg": "no"}, "oh"]}, "no; oh", None),
            ({"detail": {"error": {"message": "no"}}}, "no", None),
            ({"error": ["no", "oh"]}, "no; oh", None),
            ({"errors": [{"message": "no"}]}, "no", None),
            ({"object": "error", "message": "no", "code": 400}, "no", None),
            ({"error": {"code": 5}, "message": "no"}, "no", None),
        ],
    )
    def test_is_read_whatever_its_shape(self, said, message, param):
        refused = refusal(router_errors.WorkerRejected(422, orjson.dumps(said)))
        assert (refused.status, refused.body["message"]) == (422, message)
        assert (refused.body["error"]["message"], refused.body["error"]["param"]) == (
            message,
            param,
        )

    def test_never_has_a_status_of_success(self):
        assert refusal(router_errors.WorkerRejected(200, b"{}")).status == 400


def test_an_error_in_a_stream_is_one_event_that_clients_parse():
    event = refusal(router_errors.AnswerBroken("cut")).event()
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert orjson.loads(event[6:])["error"]["code"] == "answer_broken"


def test_an_error_with_invalid_unicode_is_still_sent():
    assert b"?" in refusal(WrongParameter("\udcff")).response().body


def test_retry_after_is_in_an_event_too():
    event = refusal(router_errors.NoCapacity("full", retry_after=2.2)).event()
    assert orjson.loads(event.removeprefix(b"data: "))["error"]["retry_after"] == 3
    event = refusal(router_errors.AnswerBroken("cut")).event()
    assert "retry_after" not in orjson.loads(event.removeprefix(b"data: "))["error"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (" no ", "no"),
        ({"error": "no"}, "no"),
        ({"error": {"message": "no"}}, "no"),
        ({"detail": "no", "other": 1}, "no"),
        ({"errors": ["a", {"msg": "b"}]}, "a; b"),
        ({"detail": [{"loc": ["body", "seed"], "msg": "too big"}]}, "seed: too big"),
        ({"message": ""}, ""),
        ({"code": 7}, ""),
        (None, ""),
        ([[[[[["deep"]]]]]], ""),
        (["x"] * 100, "; ".join(["x"] * MAX_FAULTS)),
    ],
)
def test_the_message_is_found_in_every_shape(said, words):
    assert message_in(said) == words


@pytest.mark.parametrize(
    ("given", "place"),
    [(["body", "a", 0, "b"], "a.0.b"), (["query", "a"], "query.a"), ("body", ""), (None, "")],
)
def test_a_fields_path_starts_below_the_body(given, place):
    assert place_of(given) == place
