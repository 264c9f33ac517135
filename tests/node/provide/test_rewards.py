"""Laws of reward functions: how each scores, what they ask of models, and which requests are refused."""

import orjson
import pytest

from node.provide import rewards
from node.provide.asker import Asker, NodeAnswer
from node.provide.rewards import (
    FUNCTIONS,
    Pair,
    Unscored,
    exact_match,
    length,
    llm_judge,
    logprob,
    regex,
    rerank,
    scored,
)


class Says(Asker):
    """Stand-in for the node that gives one answer to everything."""

    def __init__(self, payload=None, status=200):
        super().__init__("")
        self.asked = []
        self._said = NodeAnswer(status, orjson.dumps(payload))

    async def post(self, path, body):
        self.asked.append((path, orjson.loads(body)))
        return self._said


def pair(response="A vine.", model="m", **params):
    return Pair("What grows?", response, model, params)


@pytest.mark.parametrize(
    ("function", "params", "response", "score"),
    [
        (exact_match, {"expected": "A vine."}, " A vine.\n", 1),
        (exact_match, {"expected": "a VINE."}, "A vine.", 0),
        (exact_match, {"expected": "a VINE.", "ignore_case": True}, "A vine.", 1),
        (regex, {"pattern": r"^A \w+\.$"}, "A vine.", 1),
        (regex, {"pattern": "tree"}, "A vine.", 0),
        (length, {"max": 7}, "A vine.", 1),
        (length, {"max": 7}, "A vine." * 2, 0.5),
        (length, {"min": 4, "unit": "words"}, "A vine.", 0.5),
        (length, {"min": 1, "max": 2, "unit": "words"}, "A vine.", 1),
        (length, {"min": 1}, "", 0),
    ],
)
async def test_functions_that_need_no_model_score_without_asking_the_node(
    function, params, response, score
):
    node = Says()
    assert (await function(node, pair(response, **params))).score == score
    assert not node.asked


async def test_a_reranker_is_asked_how_relevant_a_response_is():
    node = Says({"results": [{"index": 0, "relevance_score": 0.7}]})
    assert (await rerank(node, pair())).score == 0.7
    assert node.asked == [
        ("/v1/rerank", {"model": "m", "query": "What grows?", "documents": ["A vine."]})
    ]


@pytest.mark.parametrize(
    ("said", "score"),
    [("7", 0.7), ("I think 3, no: 8.5", 0.85), ("11", 1), ("-3", 0), ("10", 1)],
)
async def test_the_score_of_a_judge_is_the_last_number_it_says(said, score):
    node = Says({"choices": [{"message": {"content": said}}]})
    assert (await llm_judge(node, pair(criteria="It {rhymes}."))).score == score
    assert "It {rhymes}." in node.asked[0][1]["messages"][0]["content"]


async def test_the_likelihood_is_of_the_response_alone():
    logprobs = {"token_logprobs": [None, -1.0, -2.0, -4.0, -9.0], "text_offset": [0, 5, 12, 14, 19]}
    score = await logprob(Says({"choices": [{"logprobs": logprobs}]}), pair())
    assert (score.score, score.logprob) == (-3.0, -6.0)


@pytest.mark.parametrize(
    ("function", "said", "status"),
    [
        (rerank, {"results": []}, 502),
        (llm_judge, {"choices": [{"message": {"content": "Good!"}}]}, 502),
        (llm_judge, {}, 502),
        (llm_judge, [], 502),
        (logprob, {"choices": [{"logprobs": None}]}, 400),
    ],
)
async def test_an_answer_of_a_model_without_a_score_is_an_error(function, said, status):
    with pytest.raises(Unscored) as unscored:
        await function(Says(said), pair())
    assert unscored.value.heard.status == status


async def test_the_answer_of_a_busy_model_is_passed_on_unchanged():
    with pytest.raises(Unscored) as unscored:
        await rerank(Says({"error": 1}, 429), pair())
    assert unscored.value.heard == NodeAnswer(429, b'{"error":1}')


async def test_a_pattern_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(rewards, "LONGEST_SEARCH", 0.3)
    with pytest.raises(Unscored) as unscored:
        await regex(Says(), pair("a" * 64, pattern="(a+)+b"))
    assert b"too long" in unscored.value.heard.body


def asked(name="length", params=None, **changed):
    messages = [{"role": "user", "text": "What grows?"}, {"role": "assistant", "text": "A vine."}]
    function = {"name": name, "params": {"max": 9} if params is None else params}
    return {"prompt_with_response": messages, "scoring_function": function, **changed}


async def test_a_score_has_an_id():
    answer = await scored(Says(), asked())
    payload = orjson.loads(answer.body)
    assert (answer.status, payload["score"]) == (200, 1)
    assert payload["id"].startswith("score_")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (asked("none"), "scoring_function"),
        (asked(scoring_function=1), "scoring_function"),
        (asked(params=[1]), "scoring_function.params"),
        (asked(params={"unit": "x"}), "scoring_function.params"),
        (asked(params={"max": "x"}), "scoring_function.params.max"),
        (asked(params={"max": -1}), "scoring_function.params.max"),
        (asked(params={"min": -1, "max": 1}), "scoring_function.params.min"),
        (asked(params={"max": 1, "unit": "x"}), "scoring_function.params.unit"),
        (asked("exact_match"), "scoring_function.params.expected"),
        (asked("regex", {"pattern": "("}), "scoring_function.params.pattern"),
        (asked("rerank"), "reward"),
        (asked(prompt_with_response=[{"text": "a"}]), "prompt_with_response"),
        (asked(prompt_with_response=[{"text": "a"}, 1]), "prompt_with_response"),
    ],
)
async def test_the_error_for_an_invalid_request_names_the_parameter(wrong, param):
    answer = await scored(Says(), wrong)
    assert (answer.status, orjson.loads(answer.body)["error"]["param"]) == (400, param)


def test_every_function_is_named_as_requests_name_it():
    assert all(function.__name__ == name for name, function in FUNCTIONS.items())
