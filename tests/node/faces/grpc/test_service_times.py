"""Service times learnt from answers over gRPC, as from those over HTTP."""

import pytest

from router.requests import Kind
from router.rpc.messages import LOCALAI


@pytest.mark.parametrize("call", ["Predict", "PredictStream"])
async def test_the_service_time_is_learnt_from_an_answer_over_grpc(served, opened, tmp_path, call):
    client = await opened("localai", LOCALAI, served.context, localai_files=str(tmp_path))
    assert (await client.ask("LoadModel", Model="tiny")).success
    worker = next(iter(served.context.agent.workers))
    assert served.context.router.service_time(worker, Kind.COMPLETION) is None
    if call == "Predict":
        await client.ask(call, Prompt="Once upon")
    else:
        assert [reply async for reply in client.stream(call, Prompt="Once upon")]
    learnt = served.context.router.service_time(worker, Kind.COMPLETION)
    assert learnt is not None
    assert learnt.tokens > 0
