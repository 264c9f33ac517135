"""Requests for embeddings, rankings and tokens to a LocalAI backend."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest

from router.dialects import Dialect
from router.dialects.localai_grpc import vectors
from router.dialects.localai_grpc.backend import METHODS, BackendJob
from router.errors import (
    WorkerFailed,
    WorkerUnable,
)
from router.peers.headers import DROPPED
from router.requests import Kind
from tests.router.dialects.localai_grpc.asks import ask, no_image, request_of
from tests.workers.localai_worker import LocalAIWorker


class TestEmbeddings:
    async def test_are_requested_one_by_one(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        answer, payload = await ask(dialect, worker, Kind.EMBEDDING, input=["hi", "there"])
        assert [one["embedding"] for one in payload["data"]] == [[2, 0.5, -1], [5, 0.5, -1]]
        assert [one.asked.Embeddings for one in worker.received] == ["hi", "there"]
        assert all(not one.asked.Prompt for one in worker.received)
        assert (payload["model"], payload["usage"]["estimated"]) == ("llama", True)
        assert answer.usage
        assert answer.usage.prompt == payload["usage"]["total_tokens"] == 3

    async def test_may_be_made_of_tokens(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        _, payload = await ask(dialect, worker, Kind.EMBEDDING, input=[5, 6, 7])
        assert list(worker.received[0].asked.EmbeddingTokens) == [5, 6, 7]
        assert payload["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        assert payload["data"][0]["embedding"][0] == 3

    @pytest.mark.parametrize("given", [[5, 6, 7], [[5], [6]], ["a", [5]]])
    async def test_of_tokens_are_refused_where_the_backend_reads_texts_only(
        self, dialect: Dialect, worker: LocalAIWorker, given: object
    ) -> None:
        worker.fail(texts_only=True)
        with pytest.raises(WorkerUnable) as unable:
            await ask(dialect, worker, Kind.EMBEDDING, input=given)
        assert unable.value.param == "input"

    async def test_have_the_requested_length_or_are_refused(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        await ask(dialect, worker, Kind.EMBEDDING, dimensions=3)
        with pytest.raises(WorkerUnable) as unable:
            await ask(dialect, worker, Kind.EMBEDDING, dimensions=2)
        assert unable.value.param == "dimensions"


class TestRanking:
    async def test_is_in_the_backends_order(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        answer, payload = await ask(dialect, worker, Kind.RERANK, top_n=2)
        assert [result["index"] for result in payload["results"]] == [1, 2]
        assert payload["results"][0]["document"] == {"text": "bbb"}
        assert payload["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
        assert (worker.asked.top_n, answer.headers) == (2, {})

    async def test_has_all_documents_unless_fewer_are_requested(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        _, payload = await ask(dialect, worker, Kind.RERANK, top_n=99, return_documents=False)
        assert [result["index"] for result in payload["results"]] == [1, 2, 0]
        assert "document" not in payload["results"][0]
        assert worker.asked.top_n == 3


async def test_tokens_are_those_of_the_backend(dialect: Dialect, worker: LocalAIWorker) -> None:
    answer, payload = await ask(dialect, worker, Kind.TOKENIZE, add_special_tokens=True, x_own=1)
    assert payload == {"tokens": [0, 4]}
    assert answer.headers == {DROPPED: "add_special_tokens, x_own"}


def told(kind: Kind, value: Any) -> BackendJob:
    """Return a request to a backend that answers everything with `value`."""

    async def ask(_: str, __: Mapping[str, object]) -> Any:
        return value

    return BackendJob(request_of(kind), "llama", "own", ask, no_image)


@pytest.mark.parametrize(
    "results",
    [
        [{"index": 3}],
        [{"index": -1}],
        [{"index": 0}, {"index": 0}],
        [{"index": 0, "relevance_score": nan}],
    ],
)
async def test_a_ranking_with_wrong_indices_or_scores_is_a_failure(results: Any) -> None:
    with pytest.raises(WorkerFailed):
        await vectors.rank(told(Kind.RERANK, METHODS["Rerank"].reply_class(results=results)))


@pytest.mark.parametrize("numbers", [[], [nan], [inf, 1]])
async def test_a_vector_that_is_empty_or_not_finite_is_a_failure(numbers: list[float]) -> None:
    with pytest.raises(WorkerFailed):
        await vectors.embed(
            told(Kind.EMBEDDING, METHODS["Embedding"].reply_class(embeddings=numbers))
        )
