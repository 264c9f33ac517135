"""Rankings of servers that speak OpenAI's protocol: each has its own field names, and all become one form."""

import orjson
import pytest

from router.dialects.openai_http import answers
from router.errors import WorkerFailed
from router.requests import Kind, Request

ASKED = {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}


def wanted(**fields):
    body = orjson.dumps(ASKED | fields)
    return answers.read_ranking(Request("r", Kind.RERANK, "m", body, "application/json"))


def ranked(payload, **fields):
    return orjson.loads(
        answers.to_common_ranking(orjson.dumps(payload), wanted(**fields), id_="r", name="tiny")
    )


@pytest.mark.parametrize(
    "said",
    [
        {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]},
        {
            "object": "rerank",
            "model": "own",
            "results": [
                {"index": 0, "relevance_score": 0.1, "document": "a"},
                {"index": 1, "relevance_score": 0.9, "document": "b"},
            ],
        },
        {
            "results": [
                {"index": 1, "score": 0.9, "document": {"text": "b"}},
                {"index": 0, "score": 0.1},
            ]
        },
        {"data": [{"index": 0, "score": 0.1}, {"index": 1, "score": 0.9}]},
        [{"index": 0, "score": 0.1, "text": "a"}, {"index": 1, "score": 0.9, "text": "b"}],
    ],
)
def test_rankings_have_one_form_whatever_the_field_names_of_the_worker(said):
    ranking = ranked(said)
    rows = [
        {name: row[name] for name in ("index", "relevance_score", "document")}
        for row in ranking["results"]
    ]
    assert rows == [
        {"index": 1, "relevance_score": 0.9, "document": {"text": "b"}},
        {"index": 0, "relevance_score": 0.1, "document": {"text": "a"}},
    ]
    assert (ranking["model"], ranking["id"], ranking["usage"]["estimated"]) == (
        "tiny",
        "rerank-r",
        True,
    )


def test_other_fields_of_the_worker_are_kept():
    usage = {"total_tokens": 7}
    row = {"index": 0, "relevance_score": 1, "own": 5}
    ranking = ranked({"id": "i", "usage": usage, "meta": {"a": 1}, "results": [row]})
    assert (ranking["id"], ranking["usage"], ranking["meta"]) == ("i", usage, {"a": 1})
    assert ranking["results"][0]["own"] == 5


def test_documents_are_left_out_on_request_and_results_are_cut_to_top_n():
    rows = {"results": [{"index": n, "relevance_score": n, "document": "x"} for n in (0, 1)]}
    (best,) = ranked(rows, return_documents=False, top_n=1)["results"]
    assert best == {"index": 1, "relevance_score": 1}


@pytest.mark.parametrize(
    "said",
    [
        {"results": [{"index": 9, "relevance_score": 1}]},
        {"results": [{"relevance_score": 1}]},
        {"results": [{"index": 0}]},
        {"results": []},
        {"own": 1},
        5,
    ],
)
def test_a_body_that_is_no_ranking_is_passed_on_unchanged(said):
    assert ranked(said) == said


def test_a_failure_with_a_status_of_success_is_a_failure():
    with pytest.raises(WorkerFailed):
        ranked({"code": 5, "results": []})


def test_documents_are_sent_as_texts():
    body = orjson.dumps(ASKED | {"own": 1})
    assert orjson.loads(answers.ranking_body(body, wanted())) == {
        **ASKED,
        "own": 1,
        "documents": ["a", "b"],
    }
    plain = orjson.dumps(ASKED | {"documents": ["a"]})
    assert answers.ranking_body(plain, wanted(documents=["a"])) is plain


@pytest.mark.parametrize("documents", [[{"image": "data:"}], [], "a", [["a"]]])
def test_documents_that_are_not_texts_are_left_to_the_worker(documents):
    assert wanted(documents=documents) is None
