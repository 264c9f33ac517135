"""Synthetic data: how many responses there are, what they score, and which a filter keeps."""

import orjson
import pytest

from node.provide.asker import Asker, NodeAnswer
from node.provide.batch.engine import answer_to
from node.provide.batch.store import OpenLine
from node.provide.batch.synthetic import ENDPOINT, SCORING, check, kept, points_of
from node.provide.rewards import Unscored

LENGTH = {"name": "length", "params": {"max": 2}}


class Counts(Asker):
    """Stand-in for the node whose answers are each a letter longer than the one before."""

    def __init__(self, status=200):
        super().__init__("")
        self.asked = []
        self._status = status

    async def post(self, path, body, session=""):
        self.asked.append(path)
        text = "x" * len(self.asked)
        return NodeAnswer(self._status, orjson.dumps({"choices": [{"message": {"content": text}}]}))


def asked(**more):
    prompt = [{"role": "user", "text": "hi"}]
    return {
        "model": "m",
        "messages": prompt,
        "num_generations": 4,
        "scoring_function": LENGTH,
        **more,
    }


def rows(answer):
    return [orjson.loads(row) for row in answer.body.splitlines()]


async def test_each_generation_is_a_point_with_its_score():
    answer = await points_of(Counts(), asked(), "a")
    assert [(row["custom_id"], row["index"]) for row in rows(answer)] == [
        ("a", n) for n in range(4)
    ]
    assert [row["score"] for row in rows(answer)] == [1, 1, 2 / 3, 0.5]
    assert rows(answer)[1]["response"] == {"role": "assistant", "text": "xx"}


@pytest.mark.parametrize(
    ("by", "indices"),
    [
        ({"name": "threshold", "params": {"min": 0.6}}, [0, 1, 2]),
        ({"name": "threshold", "params": {"min": 2}}, []),
        ({"name": "top_k", "params": {"k": 3}}, [0, 1, 2]),
        ({"name": "best_of"}, [0]),
    ],
)
async def test_a_filter_keeps_the_best(by, indices):
    answer = await points_of(Counts(), asked(filtering_function=by), "a")
    assert [row["index"] for row in rows(answer)] == indices


async def test_a_failure_of_the_node_or_of_the_request_is_the_answer():
    assert (await points_of(Counts(429), asked(), "a")).status == 429
    assert (await points_of(Counts(), asked(messages=[1]), "a")).status == 400
    wrong = {"name": "exact_match"}
    assert (await points_of(Counts(), asked(scoring_function=wrong), "a")).status == 400
    assert (await points_of(Counts(), asked(num_generations="x"), "a")).status == 400


async def test_a_reward_model_with_an_endpoint_of_its_own_is_asked_through_the_node():
    counts = Counts()
    line = OpenLine("b", SCORING, 1, "a", b'{"scoring_function":{"name":"score"}}', 0)
    assert (await answer_to(counts, line)).status == 200
    assert counts.asked == [SCORING]
    other = OpenLine("b", "/v1/embeddings", 1, "a", b"{}", 0)
    await answer_to(counts, other)
    await answer_to(counts, OpenLine("b", ENDPOINT, 1, "a", orjson.dumps(asked()), 0))
    assert counts.asked[1:] == ["/v1/embeddings", *["/v1/chat/completions"] * 4]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"num_generations": 0}, "num_generations"),
        ({"num_generations": 65}, "num_generations"),
        ({"model": None}, "model"),
        ({"scoring_function": {"name": "none"}}, "scoring_function"),
        ({"scoring_function": None, "filtering_function": {"name": "best_of"}}, "scoring_function"),
        ({"filtering_function": {"name": "none"}}, "filtering_function"),
        ({"filtering_function": {"name": "top_k"}}, "filtering_function.params.k"),
        ({"filtering_function": {"name": "threshold"}}, "filtering_function.params.min"),
        ({"filtering_function": {"name": "top_k", "params": [1]}}, "filtering_function.params"),
    ],
)
def test_the_refusal_of_an_invalid_job_names_the_parameter(wrong, param):
    with pytest.raises(Unscored) as unscored:
        check(asked(**wrong))
    assert orjson.loads(unscored.value.heard.body)["error"]["param"] == param


def test_without_a_filter_all_points_are_kept():
    assert kept([{"index": 0}], None) == [{"index": 0}]
