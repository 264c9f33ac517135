"""Verbatim bodies that another node forged: a worker gets no call that it would not get otherwise, and is not blamed."""

from dataclasses import replace

import orjson
import pytest

from router import dialects
from router.errors import WorkerRejected, WorkerUnable
from router.requests import Kind
from router.translate.verbatim import LOCALAI, REMOTELLM, TGI, Verbatim
from tests.router.world import chat, links, own, whole
from tests.workers import localai_worker, remotellm_worker, tgi_worker

WORKERS = {TGI: tgi_worker, LOCALAI: localai_worker, REMOTELLM: remotellm_worker}
ASKED = orjson.dumps({"model": "llama", "prompt": "a"})


async def ask(name: str, original: Verbatim):
    """Return the answer and the paths that were requested."""
    request = replace(chat(kind=Kind.COMPLETION, body=ASKED), verbatim=original)
    async with WORKERS[name].running() as worker, links() as own_links:
        dialect = dialects.load(name)(own_links)
        try:
            async with dialect.answer(request, own(worker.url, dialect=name)) as answer:
                await whole(answer)
                return answer, [received.path for received in worker.received]
        finally:
            await own_links.close()


@pytest.mark.parametrize(
    ("name", "call"), [(TGI, "metrics"), (LOCALAI, "LoadModel"), (REMOTELLM, "GetLlmType")]
)
async def test_calls_that_are_not_passed_on_are_translated(name, call):
    answer, paths = await ask(name, Verbatim(name, call, b"{}"))
    assert not answer.verbatim
    assert not any(path.endswith(call) for path in paths)


async def test_a_request_that_needs_such_a_call_is_refused():
    with pytest.raises(WorkerUnable) as unable:
        await ask(TGI, Verbatim(TGI, "metrics", b"{}", "watermark"))
    assert unable.value.param == "watermark"


@pytest.mark.parametrize(("name", "call"), [(LOCALAI, "Predict"), (REMOTELLM, "Generate")])
async def test_a_body_that_is_no_message_is_the_fault_of_the_caller(name, call):
    with pytest.raises(WorkerRejected):
        await ask(name, Verbatim(name, call, b"\xff" * 40))


@pytest.mark.parametrize("name", sorted(WORKERS))
async def test_a_verbatim_body_of_another_protocol_is_ignored(name):
    other = LOCALAI if name == TGI else TGI
    answer, _ = await ask(name, Verbatim(other, "Predict", b"\xff"))
    assert not answer.verbatim
