"""The usage option of streams: every other byte stays, and a worker that refuses the option costs no error."""

import orjson
import pytest

from router.dialects import Dialect
from router.dialects.openai_http import create
from router.errors import WorkerRejected
from router.requests import Kind
from tests.router.world import MODEL, QUICK, ask, chat, links, own
from tests.workers.openai_worker import OpenAIWorker

TEXT_STREAM = chat(stream=True)


async def test_a_stream_is_asked_for_its_usage_if_its_caller_did_not(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    answer, body = await ask(dialect, TEXT_STREAM, own(worker.url, model="own-name"))
    assert answer.hides_usage
    assert orjson.loads(worker.received[0].body)["stream_options"] == {"include_usage": True}
    assert orjson.loads(worker.received[0].body)["model"] == "own-name"
    assert b'"prompt_tokens":5' in body


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
async def test_a_request_with_the_option_set_by_its_caller_is_sent_unchanged(
    worker: OpenAIWorker, dialect: Dialect, kind: Kind
) -> None:
    body = b'{"model":"llama","stream":true,"stream_options":{"include_usage":true}}'
    answer, _ = await ask(dialect, chat(stream=True, kind=kind, body=body), own(worker.url))
    assert not answer.hides_usage
    assert worker.received[0].body == body


async def test_other_kinds_and_whole_answers_are_sent_unchanged(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    for request in (chat(), chat(stream=True, kind=Kind.SPEECH), chat(kind=Kind.EMBEDDING)):
        await ask(dialect, request, own(worker.url))
        assert worker.received[-1].body == request.body


async def test_a_worker_that_refuses_the_option_costs_no_error_and_does_not_get_it_again(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    worker.fail(refuses_usage=True)
    for _ in range(2):
        answer, body = await ask(dialect, TEXT_STREAM, own(worker.url))
        assert not answer.hides_usage
        assert body.endswith(b"data: [DONE]\n\n")
    with_option = [b"stream_options" in received.body for received in worker.received]
    assert with_option == [True, False, False]


async def test_a_worker_known_to_take_the_option_is_not_retried_when_it_refuses_a_request(
    worker: OpenAIWorker, dialect: Dialect
) -> None:
    await ask(dialect, TEXT_STREAM, own(worker.url))
    worker.fail(status=400)
    with pytest.raises(WorkerRejected):
        await ask(dialect, TEXT_STREAM, own(worker.url))
    assert len(worker.received) == 2


async def test_a_setting_turns_the_option_off(worker: OpenAIWorker) -> None:
    async with links(QUICK.model_copy(update={"stream_usage": False})) as own_links:
        answer, body = await ask(create(own_links), TEXT_STREAM, own(worker.url))
    assert worker.received[0].body == TEXT_STREAM.body
    assert body == b"".join(worker.events(MODEL))
    assert not answer.hides_usage
