"""OpenAI's own client at a node whose worker is a LocalAI backend, at that node and one hop away."""

import openai
import pytest

from tests.node.faces.assembly import Pair, openai_at, until
from tests.workers import localai_worker


@pytest.fixture
async def localai():
    async with localai_worker.running() as worker:
        yield worker


@pytest.fixture(params=["serving", "asked"])
async def ai(request, mesh: Pair, localai):
    api = localai.url.replace("grpc:", "grpc+localai:")
    async with openai_at(await mesh.offers(request.param, localai, api=api)) as ai:
        yield ai


async def test_the_cause_of_the_workers_failure_is_reported(ai, localai):
    localai.fail(code="UNKNOWN", refusal=b"Unexpected <class 'KeyError'>: '/srv/models'")
    with pytest.raises(openai.InternalServerError, match="UNKNOWN: Unexpected <class"):
        await ai.completions.create(model="tiny", prompt="a")


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(ai, localai, mesh):
    localai.fail(delay_between=0.2)
    stream = await ai.completions.create(model="tiny", prompt="a", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: localai.hung_up == 1)
    await until(lambda: mesh.one.context.router.in_flight.total() == 0)


async def test_a_slot_stays_taken_while_the_worker_works_on_a_cancelled_request(ai, localai, mesh):
    localai.fail(delay_between=0.1, serial=True, stubborn=True)
    stream = await ai.completions.create(model="tiny", prompt="a", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: localai.hung_up == 1)
    in_flight = mesh.one.context.router.in_flight
    assert (in_flight.total(), localai.finished) == (1, 0)
    # A node that shuts down does not wait for it.
    assert mesh.one.context.router.attempts_in_flight == 0
    await until(lambda: in_flight.total() == 0)
    assert localai.finished == 1
