"""Requests for tokens to TGI; other kinds but texts are refused."""

from collections.abc import AsyncIterator

import orjson
import pytest

from router.answer import Answer
from router.dialects import Dialect
from router.dialects.tgi_http import create
from router.dialects.tgi_http.answer_parser import tokens_told
from router.errors import WorkerFailed, WorkerRejected, WorkerUnable
from router.peers.headers import DROPPED
from router.requests import Kind
from tests.router.world import chat, links, own, whole
from tests.workers.tgi_worker import TgiWorker, running


@pytest.fixture
async def worker() -> AsyncIterator[TgiWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as ours:
        yield create(ours)


async def ask(
    dialect: Dialect,
    worker: TgiWorker,
    kind: Kind = Kind.TOKENIZE,
    path: str = "",
    **fields: object,
) -> tuple[Answer, bytes]:
    body = orjson.dumps({"model": "llama", **fields})
    async with dialect.answer(chat(kind=kind, body=body), own(worker.url + path)) as answer:
        return answer, await whole(answer)


@pytest.mark.parametrize("name", ["content", "prompt", "input"])
@pytest.mark.parametrize("path", ["", "/tokenize", "/v1/chat/completions"])
async def test_a_text_is_tokenized_under_each_of_its_field_names(
    worker: TgiWorker, dialect: Dialect, name: str, path: str
) -> None:
    answer, body = await ask(dialect, worker, path=path, **{name: "höy"})
    assert orjson.loads(body) == {"tokens": [ord("h"), ord("ö"), ord("y")]}
    assert worker.asked == {"inputs": "höy"}
    assert (answer.status, answer.length, answer.headers) == (200, len(body), {})


async def test_the_texts_of_tokens_have_the_form_of_llama_cpp_or_vllm(
    worker: TgiWorker, dialect: Dialect
) -> None:
    answer, body = await ask(dialect, worker, content="hé", with_pieces=True)
    pieces = [{"id": ord("h"), "piece": "h"}, {"id": ord("é"), "piece": "é"}]
    assert (orjson.loads(body), answer.headers) == ({"tokens": pieces}, {})
    _, body = await ask(dialect, worker, prompt="hé", return_token_strs=True)
    assert orjson.loads(body) == {"tokens": [ord("h"), ord("é")], "token_strs": ["h", "é"]}


async def test_parameters_without_effect_are_named(worker: TgiWorker, dialect: Dialect) -> None:
    answer, _ = await ask(dialect, worker, content="a", add_special=False, parse_special=True)
    assert answer.headers == {DROPPED: "add_special_tokens, parse_special"}


async def test_fields_that_are_unsupported_or_wrong_are_refused_by_name(
    worker: TgiWorker, dialect: Dialect
) -> None:
    with pytest.raises(WorkerUnable) as unable:
        await ask(dialect, worker, content="a", messages=[{"role": "user", "content": "a"}])
    assert unable.value.param == "messages"
    with pytest.raises(WorkerRejected) as refused:
        await ask(dialect, worker, content=7)
    assert orjson.loads(refused.value.body)["error"]["param"] == "content"
    assert worker.received == []


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.CHAT, Kind.COMPLETION, Kind.TOKENIZE}))
async def test_every_other_kind_is_refused_with_its_path(
    worker: TgiWorker, dialect: Dialect, kind: Kind
) -> None:
    with pytest.raises(WorkerUnable, match=f"does not serve /v1/{kind}$"):
        await ask(dialect, worker, kind)
    assert worker.received == []


async def test_a_server_without_a_tokenizer_is_unable_and_has_not_failed(
    worker: TgiWorker, dialect: Dialect
) -> None:
    worker.fail(status=404, refusal=b'{"error":"No fast tokenizer available"}')
    with pytest.raises(WorkerUnable, match="does not serve /v1/tokenize"):
        await ask(dialect, worker, content="a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"id":1}]',
        b'[{"id":-1,"text":""}]',
        b'[{"id":true,"text":""}]',
        b'[{"id":"1","text":""}]',
    ],
)
def test_nonsense_is_a_failed_attempt(body: bytes) -> None:
    with pytest.raises(WorkerFailed):
        tokens_told(chat(kind=Kind.TOKENIZE, body=b'{"content":"a"}'), body)
