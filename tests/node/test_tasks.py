"""Laws of the supervisor of background tasks."""

import logging

import pytest

from node.runtime import supervise


async def test_a_task_that_fails_runs_again_and_the_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []

    async def fails_twice() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise RuntimeError("broken")

    with caplog.at_level(logging.ERROR):
        await supervise("a thing", fails_twice, first_pause=0.0)
    assert runs == [0, 1, 2]
    assert caplog.text.count("a thing failed") == 2


@pytest.mark.parametrize(("well", "pauses"), [(60.0, ["0.1", "0.2"]), (0.0, ["0.1", "0.1"])])
async def test_the_pause_grows_only_while_failures_follow_each_other(
    well: float, pauses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    left = iter((RuntimeError("broken"), RuntimeError("broken")))

    async def fails_twice() -> None:
        if (error := next(left, None)) is not None:
            raise error

    with caplog.at_level(logging.ERROR):
        await supervise("a thing", fails_twice, first_pause=0.1, well=well)
    assert [
        f"restarts in {pause} s" in line
        for pause, line in zip(pauses, caplog.messages, strict=True)
    ] == [True, True]
